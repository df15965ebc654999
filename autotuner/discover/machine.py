"""Processors, memory, disks and limits."""

from __future__ import annotations

import json
import re

from autotuner.model.machine import Disk, Limit, Memory, Processors

_KIB_PER_GIB = 1 << 20
_LIMITS = {"Max open files": "nofile", "Max locked memory": "memlock"}
_DISK = re.compile(
    r"^(?P<device>.+?)\s+(?P<kind>\S+)\s+(?P<size>\d{1,18})\s+\d{1,18}\s+(?P<free>-?\d{1,18})\s+(?:\d{1,3}%|-)\s+(?P<mount>/.*)$"
)
_LIMIT = re.compile(r"^(Max [a-z ]+?)\s{2,}(\d{1,19}|unlimited)\s+(\d{1,19}|unlimited)\s")


def parse_disk(text: str, path: str) -> Disk | None:
    """The file system of ``path`` from the output of ``df -PkT``; ``None`` when it does not say. Device names may hold blanks."""
    for line in text.splitlines()[1:]:
        found = _DISK.match(line.rstrip())
        if found is not None:
            return Disk(
                path=path,
                kind=found["kind"],
                size_gib=round(int(found["size"]) / _KIB_PER_GIB, 3),
                free_gib=round(max(int(found["free"]), 0) / _KIB_PER_GIB, 3),
                mount=found["mount"],
            )
    return None


def parse_memory(text: str) -> Memory:
    """Memory and swap from ``/proc/meminfo``; 0 for what it does not say."""
    found = {name: int(kib) / _KIB_PER_GIB for name, kib in re.findall(r"^(\w+):\s+(\d{1,18}) kB$", text, re.MULTILINE)}
    swap = found.get("SwapTotal", 0.0)
    return Memory(
        total=round(found.get("MemTotal", 0.0), 2),
        available=round(found.get("MemAvailable", 0.0), 2),
        swap=round(swap, 2),
        swap_used=round(max(swap - found.get("SwapFree", swap), 0.0), 2),
    )


def parse_processors(text: str) -> Processors:
    """Processors from the output of ``lscpu -J``; empty when it is not that."""
    try:
        entries = json.loads(text)["lscpu"]
        said = {str(entry["field"]).rstrip(":"): str(entry["data"]) for entry in _flat(entries)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Processors()
    return Processors(
        count=_integer(said.get("CPU(s)")) or 0,
        model=said.get("Model name"),
        sockets=_integer(said.get("Socket(s)")),
        numa_nodes=_integer(said.get("NUMA node(s)")),
        hypervisor=said.get("Hypervisor vendor"),
    )


def _flat(entries: list[dict[str, object]]) -> list[dict[str, object]]:
    """Newer versions nest entries below ``children``."""
    found: list[dict[str, object]] = []
    for entry in entries:
        found.append(entry)
        children = entry.get("children")
        if isinstance(children, list):
            found.extend(_flat(children))
    return found


def parse_governors(text: str) -> dict[str, int]:
    """Frequency governor → processors, from one ``scaling_governor`` a line; lines of another kind are passed over."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        if re.fullmatch(r"[a-z_]{1,32}", line.strip()):
            found[line.strip()] = found.get(line.strip(), 0) + 1
    return found


def parse_limits(text: str) -> dict[str, Limit]:
    """``nofile`` and ``memlock`` (in bytes) from ``/proc/PID/limits``; one that it does not tell is left out."""
    rows = [found for found in map(_LIMIT.match, text.splitlines()) if found is not None and found[1] in _LIMITS]
    return {_LIMITS[row[1]]: (_amount(row[2]), _amount(row[3])) for row in rows}


def _amount(word: str) -> int | None:
    return None if word == "unlimited" else int(word)


def _integer(word: str | None) -> int | None:
    return int(word) if word is not None and re.fullmatch(r"[0-9]{1,9}", word) else None
