"""CUDA: the toolkit that kernels are compiled with, and whether driver and GPUs can run what it makes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from autotuner.model.machine import Toolkit

Version = tuple[int, int]

_DRIVER_CUDA = re.compile(r"CUDA (?:UMD )?Version\s*:\s*(\d{1,3})\.(\d{1,3})")
_NVCC = re.compile(r"\brelease (\d{1,3})\.(\d{1,3})\b")
_WHERE = re.compile(r"^where (/.*)$", re.MULTILINE)
_DRIVERS = {11: (450, 80), 12: (525, 60), 13: (580, 65)}
"""CUDA major version → oldest driver that runs it without a compatibility package (NVIDIA's release notes)."""
_ARCHITECTURES: dict[int, Version] = {90: (11, 8), 100: (12, 8), 103: (12, 9), 120: (12, 8), 121: (12, 9)}
"""Compute capability × 10 → first toolkit that compiles for it."""


def parse_driver_cuda(text: str) -> Version | None:
    """Newest CUDA version that the driver runs, from what ``nvidia-smi`` prints without arguments; ``None`` when it does not say."""
    found = _DRIVER_CUDA.search(text)
    return (int(found[1]), int(found[2])) if found else None


def parse_toolkit(text: str) -> Toolkit | None:
    """The toolkit from a line ``where FOLDER`` and the output of ``nvcc --version`` or the ``version.json`` beside it."""
    where = _WHERE.search(text)
    found = _NVCC.search(text)
    version = (int(found[1]), int(found[2])) if found else _json_version(text)
    if version is None:
        return None
    return Toolkit(version=version, where=where[1] if where else "", compiler=found is not None)


def _json_version(text: str) -> Version | None:
    start = text.find("{")
    try:
        said, _ = json.JSONDecoder().raw_decode(text[start:] if start >= 0 else "")
        found = re.match(r"(\d{1,3})\.(\d{1,3})", said["cuda"]["version"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return (int(found[1]), int(found[2])) if found else None


def mismatches(toolkit: Toolkit, driver: str, driver_cuda: Version | None, capabilities: frozenset[int]) -> Iterator[tuple[str, str]]:
    """What does not go together, each as (sentence, hint)."""
    made = f"CUDA toolkit {shown(toolkit.version)}"
    if _too_old(driver, toolkit.version[0]):
        least = ".".join(map(str, _DRIVERS[toolkit.version[0]]))
        yield (
            f"driver {driver} is too old for {made}, which wants {least} or newer",
            "update the driver, install the toolkit of the driver's version, or add NVIDIA's compatibility package (cuda-compat)",
        )
    elif driver_cuda is not None and toolkit.version > driver_cuda:
        yield (
            f"{made} is newer than what driver {driver} was made for (CUDA {shown(driver_cuda)}): kernels it makes may not load",
            "install the toolkit of the driver's version, or update the driver",
        )
    for sm in sorted(capabilities):
        first = _ARCHITECTURES.get(sm)
        if first is not None and toolkit.version < first:
            yield (
                f"{made} cannot compile for these GPUs (sm_{sm}): it takes {shown(first)} or newer",
                "install a newer toolkit, and name it in engine.env (CUDA_HOME)",
            )


def shown(version: Version) -> str:
    """``13.0``."""
    return f"{version[0]}.{version[1]}"


def _too_old(driver: str, major: int) -> bool:
    found = re.match(r"(\d{1,5})\.(\d{1,5})", driver)
    return found is not None and major in _DRIVERS and (int(found[1]), int(found[2])) < _DRIVERS[major]
