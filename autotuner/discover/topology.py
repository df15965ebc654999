"""How the GPUs are connected."""

from __future__ import annotations

import re
from collections.abc import Sequence

from autotuner.errors import StopStudy
from autotuner.model.machine import Affinity

COMMAND = ("nvidia-smi", "topo", "-m")

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"^GPU([0-9]{1,9})$")
_RANGES = re.compile(r"^[0-9][0-9,-]*$")


def parse_matrix(text: str) -> dict[tuple[int, int], str]:
    """(row GPU, column GPU) → how the two are connected (``NV18``, ``PIX``, ``NODE``, ``SYS`` …); the diagonal is left out."""
    lines = [_COLOUR.sub("", line).split() for line in text.splitlines()]
    header = next((line for line in lines if line and _GPU.match(line[0]) and (len(line) == 1 or line[1] != "X")), None)
    if header is None:
        return {}
    # The columns of the GPUs come first; NICs and affinities follow and may hold blanks.
    columns = [int(match[1]) for match in map(_GPU.match, header) if match]
    matrix: dict[tuple[int, int], str] = {}
    for line in lines[lines.index(header) + 1 :]:
        name = _GPU.match(line[0]) if line else None
        if name is not None:
            matrix.update({(int(name[1]), column): how for column, how in zip(columns, line[1:], strict=False) if how != "X"})
    return matrix


def parse_affinities(text: str) -> dict[int, Affinity]:
    """GPU → the processors and the NUMA node near to it; what the driver does not say (``N/A``) is empty.

    Columns are told apart by tabs here: NICs and the affinities leave some of them blank.
    """
    lines = [[field.strip() for field in _COLOUR.sub("", line).split("\t")] for line in text.splitlines()]
    header = next((line for line in lines if "CPU Affinity" in line), None)
    if header is None:
        return {}
    found: dict[int, Affinity] = {}
    for line in lines:
        name = _GPU.match(line[0])
        if name is not None:
            found[int(name[1])] = Affinity(cpus=_ranges(header, line, "CPU Affinity"), numa=_ranges(header, line, "NUMA Affinity"))
    return found


def _ranges(header: Sequence[str], line: Sequence[str], column: str) -> str:
    """A list of numbers such as ``0-31,64-95``; empty for anything else."""
    value = line[header.index(column)] if column in header and header.index(column) < len(line) else ""
    return value if _RANGES.match(value) else ""


def link_between(indices: Sequence[int], text: str) -> str:
    """``nvlink`` when NVLink joins every pair of these GPUs, ``pcie`` when not, ``single`` for one GPU or none.

    Raises ``StopStudy`` when the matrix does not say.
    """
    pairs = [(one, other) for one in indices for other in indices if one != other]
    if not pairs:
        return "single"
    matrix = parse_matrix(text)
    unknown = [pair for pair in pairs if pair not in matrix]
    if unknown:
        raise StopStudy(
            f"nvidia-smi topo -m: no entry for GPU{unknown[0][0]} to GPU{unknown[0][1]}",
            hint="run nvidia-smi topo -m on the host: the link between GPUs decides which trials are comparable",
        )
    return "nvlink" if all(matrix[pair].startswith("NV") for pair in pairs) else "pcie"
