"""Weights: what the headers of safetensors files say about sizes and data types, and whether the files are whole.

A file begins with the length of its header (8 bytes, little-endian), then the header: a JSON object of tensor name →
``{"dtype", "shape", "data_offsets": [begin, end]}``, offsets counted from the header's end. Nothing behind the header is read.
"""

from __future__ import annotations

import json
import math
import posixpath
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autotuner.model.facts import Weights

HEADER_LIMIT = 100_000_000
"""The format's own limit of a header's length."""
FIRST_READ = 64 << 10
"""Most headers are shorter, so one read tells all."""

_SHOWN = 4
_SHARD = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.safetensors$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """One file: its tensors' bytes and, per data type, elements."""

    bytes: int
    elements: Mapping[str, int]


def header_length(start: bytes) -> int:
    """Length of the JSON behind the first 8 bytes. Raises ``ValueError`` for what cannot be the beginning of such a file."""
    if len(start) < 8:
        raise ValueError(f"the file ends after {len(start)} bytes")
    (length,) = struct.unpack("<Q", start[:8])
    if not 2 <= length <= HEADER_LIMIT:
        raise ValueError(f"it is no safetensors file: its header would have {length} bytes")
    return int(length)


def parse_header(start: bytes, size: int) -> Header:
    """The header of a file of ``size`` bytes that begins with ``start`` (length and whole header).

    Raises ``ValueError`` saying what is wrong: no such file, a damaged header, or a file that is shorter than its tensors.
    """
    length = header_length(start)
    text = start[8 : 8 + length]
    if len(text) < length:
        raise ValueError(f"the file ends within its header, after {len(start)} of {8 + length} bytes")
    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("its header is no JSON") from error
    if not isinstance(said, dict):
        raise ValueError("its header is no JSON object")  # noqa: TRY004 - the same error for every malformed file
    elements: dict[str, int] = {}
    end = 0
    for name, tensor in said.items():
        if name != "__metadata__":
            dtype, count, last = _tensor(name, tensor)
            elements[dtype] = elements.get(dtype, 0) + count
            end = max(end, last)
    if size < 8 + length + end:
        raise ValueError(f"it has {size} bytes of the {8 + length + end} that its header names")
    return Header(bytes=end, elements=elements)


def _tensor(name: str, tensor: object) -> tuple[str, int, int]:
    """(data type, elements, end of its data). Raises ``ValueError``."""
    if isinstance(tensor, dict):
        dtype, shape, offsets = tensor.get("dtype"), tensor.get("shape"), tensor.get("data_offsets")
        sizes, ends = _sizes(shape), _sizes(offsets)
        if isinstance(dtype, str) and sizes is not None and ends is not None and len(ends) == 2:
            return dtype, math.prod(sizes), ends[1]
    raise ValueError(f"its header is damaged at tensor {name[:80]!r}")


def _sizes(value: object) -> list[int] | None:
    """A list of sizes; ``None`` for anything else."""
    if not isinstance(value, list):
        return None
    return value if all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**63 for item in value) else None


def missing_shards(names: list[str]) -> tuple[str, ...]:
    """Files of a set (``model-00002-of-00005.safetensors``) that are not there while others of the set are."""
    found = [match for match in map(_SHARD.match, names) if match is not None]
    sets = {(match["stem"], match["total"]) for match in found}
    wanted = [f"{stem}-{number:05d}-of-{total}.safetensors" for stem, total in sorted(sets) for number in range(1, int(total) + 1)]
    there = set(names)
    return tuple(name for name in wanted if name not in there)


def read_weights(folder: str, files: Mapping[str, int], read: Callable[[str, int, int], bytes]) -> Weights | None:
    """Weights of the safetensors among ``files`` (name → bytes); ``None`` when there are none.

    ``read(path, offset, limit)`` gives bytes of a file on the host. Damage is a problem of the result, not an error.
    """
    names = sorted(name for name in files if name.endswith(".safetensors"))
    if not names:
        return None
    elements: dict[str, int] = {}
    problems: list[str] = []
    total = 0
    for name in names:
        try:
            header = _header(posixpath.join(folder, name), files[name], read)
        except (ValueError, FileNotFoundError) as error:
            problems.append(f"{name}: {error}")
            continue
        total += header.bytes
        for dtype, count in header.elements.items():
            elements[dtype] = elements.get(dtype, 0) + count
    missing = missing_shards(names)
    if missing:
        problems.append(f"{len(missing)} files are missing: {', '.join(missing[:_SHOWN])}{' …' if len(missing) > _SHOWN else ''}")
    return Weights(files=len(names), bytes=total, elements=elements, problems=tuple(problems))


def _header(path: str, size: int, read: Callable[[str, int, int], bytes]) -> Header:
    start = read(path, 0, FIRST_READ)
    wanted = 8 + header_length(start)
    if len(start) < wanted:
        if size < wanted:
            raise ValueError(f"it has {size} bytes, its header alone {wanted}")
        start += read(path, len(start), wanted - len(start))
    return parse_header(start, size)
