"""The language between the tuner and its load workers on hosts. Standard library only, Python 3.10 on: it travels with ``lanes``.

A frame is two numbers of 4 bytes (big endian), the length of a JSON object and that of the bytes after it, then these two.

To the host:
* ``{"run": order}``: what to drive, see ``Order``; nothing moves yet
* ``{"body": lane}`` + the lane's next request (zlib), without its length limit
* ``{"begin": ns}``: the lanes start at this moment of the host's CLOCK_MONOTONIC
* ``{"ping": number}``
* ``{"stop": [ns, ns]}``: stop; the exchanges that did not end before the first moment are wanted, the window was between the two

From the host:
* ``{"ready": pid}``
* ``{"pong": number, "at_ns": ns}``
* ``{"progress": …, "taken": […]}``: as ``lanes.Progress``, and how many bodies each lane has taken so far
* ``{"exchanges": […]}`` + their reads, see ``packed_exchanges``; as many frames as are needed
* ``{"done": {"clock": …, "late": [[ns, ns], …], "check": …}}``: after the last of them; ``check`` as ``selfcheck.LoadCheck``
* ``{"defect": text}``
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from autotuner.loadgen.answers import ReadLog
from autotuner.loadgen.lanes import Exchange

Header = Mapping[str, Any]

_LENGTHS = struct.Struct("!II")
_FAST = 1
"""zlib level: prompts and event streams shrink well at any."""


class Order(TypedDict):
    """What one worker on a host drives; as ``lanes.Pace``, but for the last five."""

    lanes: list[int]
    concurrency: int
    output_tokens: int
    warmup_s: float
    host: str
    port: int
    path: str
    request_timeout_s: float
    silence_s: float
    """How long lanes go on without a word from the tuner."""


def frame(header: Header, payload: bytes = b"") -> bytes:
    """One frame."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return b"".join((_LENGTHS.pack(len(text), len(payload)), text, payload))


class FrameReader:
    """Takes a stream of frames in pieces and gives whole ones."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """The frames that these bytes complete. Raises ``ValueError`` when they are no frames."""
        self._buffer += data
        found = []
        begin = 0
        while len(self._buffer) - begin >= _LENGTHS.size:
            header_size, payload_size = _LENGTHS.unpack_from(self._buffer, begin)
            middle = begin + _LENGTHS.size + header_size
            end = middle + payload_size
            if len(self._buffer) < end:
                break
            header = json.loads(self._buffer[begin + _LENGTHS.size : middle])
            payload = bytes(self._buffer[middle:end])
            begin = end
            found.append((header, payload))
        del self._buffer[:begin]
        return found


def packed_body(lane: int, body: bytes) -> bytes:
    """The frame of a request body."""
    return frame({"body": lane}, zlib.compress(body, _FAST))


def unpacked_body(payload: bytes) -> bytes:
    """The request body of a frame."""
    return zlib.decompress(payload)


def packed_exchanges(exchanges: Sequence[Exchange]) -> bytes:
    """The frame of some exchanges: what there is about each, then the stamps, the sizes and the bytes of all reads, compressed."""
    about = [
        {
            "index": exchange.index,
            "lane": exchange.lane,
            "error": exchange.error,
            "detail": exchange.detail,
            "failed_ns": exchange.failed_ns,
            "sent_ns": exchange.log.sent_ns,
            "end_ns": exchange.log.end_ns,
            "user_stamps": exchange.log.user_stamps,
            "reads": len(exchange.log.reads),
        }
        for exchange in exchanges
    ]
    reads = [read for exchange in exchanges for read in exchange.log.reads]
    stamps = struct.pack(f"!{len(reads)}Q", *(stamp for stamp, _ in reads))
    sizes = struct.pack(f"!{len(reads)}I", *(len(data) for _, data in reads))
    return frame({"exchanges": about}, zlib.compress(b"".join((stamps, sizes, *(data for _, data in reads))), _FAST))


def unpacked_exchanges(about: Sequence[Header], payload: bytes) -> list[Exchange]:
    """The exchanges of a frame."""
    data = zlib.decompress(payload)
    count = sum(entry["reads"] for entry in about)
    stamps = struct.unpack_from(f"!{count}Q", data)
    sizes = struct.unpack_from(f"!{count}I", data, 8 * count)
    reads, at = [], 12 * count
    for stamp, size in zip(stamps, sizes):  # noqa: B905 - both are as long as the count
        reads.append((stamp, data[at : at + size]))
        at += size
    exchanges, first = [], 0
    for entry in about:
        log = ReadLog(
            sent_ns=entry["sent_ns"],
            reads=reads[first : first + entry["reads"]],
            user_stamps=entry["user_stamps"],
            end_ns=entry["end_ns"],
        )
        first += entry["reads"]
        exchanges.append(Exchange(entry["index"], entry["lane"], log, entry["error"], entry["detail"], entry["failed_ns"]))
    return exchanges
