"""How the GPUs are connected."""

from __future__ import annotations

import re
from collections.abc import Sequence

from autotuner.errors import StopStudy

COMMAND = ("nvidia-smi", "topo", "-m")

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"^GPU(\d+)$")


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
