"""The mock server as a process of its own, and the truth that it tells."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """One request as the server saw it. Times are ns of CLOCK_MONOTONIC, which all processes of a machine share."""

    serial: int
    model: str
    prompt: str
    """Its first characters."""
    prompt_tokens: int
    max_tokens: int
    begin_ns: int
    """When the kernel had its first bytes."""
    asked_ns: int
    """When all of it was there and understood."""
    chunks: tuple[tuple[int, int, int], ...]
    """(just before the chunk's last ``send``, just after it, cumulative tokens) of every chunk that bears a token."""
    outcome: str
    """``sent``, ``died`` (as scripted), ``refused`` (as scripted), ``left`` (by the client) or ``open``."""
    end_ns: int | None = None
    verify_steps: int | None = None
    cached_tokens: int = 0
    finish_reason: str | None = None

    @property
    def tokens(self) -> int:
        """Tokens that were sent."""
        return self.chunks[-1][2] if self.chunks else 0

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return (self.chunks[0][0] - self.begin_ns) / 1e9

    @property
    def e2e_s(self) -> float:
        """Time to the last token."""
        return (self.chunks[-1][0] - self.begin_ns) / 1e9

    @property
    def tpot_s(self) -> float:
        """Time per output token behind the first chunk."""
        (first_ns, _, first_n), (last_ns, _, last_n) = self.chunks[0], self.chunks[-1]
        return (last_ns - first_ns) / 1e9 / (last_n - first_n)


class MockServer:
    """A running mock. ``core`` pins it and gives it way over others, where that is allowed."""

    def __init__(self, core: int | None = None) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.loadgen.mock"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=ROOT,
        )
        if core is not None:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(self._process.pid, {core})
                os.setpriority(os.PRIO_PROCESS, self._process.pid, -10)
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        self.port = int(self._process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def truth(self) -> list[Truth]:
        """Every request since the last call, in the order in which they came; those that go on are told again next time."""
        lines = self._get("/truth").splitlines()
        found = [json.loads(line) for line in lines]
        truths = [Truth(**{**entry, "chunks": tuple((before, after, n) for before, after, n in entry["chunks"])}) for entry in found]
        return sorted(truths, key=lambda truth: truth.serial)

    def metrics(self) -> str:
        """Its Prometheus page."""
        return self._get("/metrics")

    def close(self) -> None:
        """End it."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:  # noqa: S310 - its own loopback address
            return str(answer.read().decode())


@contextlib.contextmanager
def mock_server(core: int | None = None) -> Iterator[MockServer]:
    """A mock for the length of a block."""
    server = MockServer(core)
    try:
        yield server
    finally:
        server.close()
