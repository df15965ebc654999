from __future__ import annotations

import itertools

from autotuner.deploy.logs import SHORT_BYTES, LogFollower
from autotuner.services.base import Handle, LaunchSpec, ServiceStatus


class Pieces:
    """A server's log that comes in pieces; after the last one it says nothing new."""

    name = "pieces"

    def __init__(self, pieces) -> None:
        self.pieces = iter(pieces)
        self.offset = 0

    def log(self, handle: Handle, *, offset: int = 0) -> bytes:
        assert offset == self.offset
        piece = next(self.pieces, b"")
        self.offset += len(piece)
        return piece

    def start(self, spec: LaunchSpec, *, session: str) -> Handle:
        raise NotImplementedError

    def status(self, handle: Handle) -> ServiceStatus:
        raise NotImplementedError

    def stop(self, handle: Handle, *, timeout_s: float) -> None:
        raise NotImplementedError


def follower(pieces) -> LogFollower:
    return LogFollower(Pieces(pieces), Handle(name="candidate", pid=1, log="here"))


def test_a_server_that_writes_faster_than_it_is_read_is_not_read_for_ever() -> None:
    busy = follower(f"line {number}\n".encode() for number in itertools.count())
    assert busy.lines() == ["line 0"]
    assert busy.lines() == ["line 1"]


def test_a_long_log_is_read_to_its_end_at_once() -> None:
    long = b"x" * (SHORT_BYTES - 1) + b"\n"
    assert len(follower([long, long, b"end\n", b"later\n"]).lines()) == 3


def test_a_line_that_comes_in_two_pieces_is_one_line() -> None:
    torn = follower([b"half a ", b"line\n"])
    assert (torn.lines(), torn.lines()) == ([], ["half a line"])
    assert torn.text == "half a line\n"
