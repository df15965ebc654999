"""The observer's log of one host, kept outside the host: it survives what is done to the host."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.hosts.machine import Machine, until

OBSERVER = Path(__file__).with_name("observer.py")


def now() -> float:
    """Seconds since this machine started: the observer's clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Sample:
    """What the observer saw at one moment."""

    t: float
    held: tuple[str, ...]
    """Units that hold processes of an engine."""
    invocation: str
    """Of production's present or latest run."""
    argv: str
    """Digest of production's command line; empty when it does not run."""
    asked: float
    """When the answers were asked for."""
    status: int | None
    models: tuple[str, ...] | None


class Watch:
    """An observer on a host, started again when the host was down."""

    def __init__(self, machine: Machine, log: Path, *, port: int, unit: str) -> None:
        self.machine = machine
        self.log = log
        self.unit = unit
        self._argv = ["/usr/bin/python3", "-E", "-S", "-u", str(OBSERVER), str(port), unit]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin or go on to watch; returns at the first sample."""
        self.stop()
        before = len(self.samples())
        argv = self.machine.command([*self._argv, f"{self.machine.clock_offset_s:.3f}", f"{self.machine.pace:g}"])
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd="/")
        until(lambda: len(self.samples()) > before, f"the observer: see {self.log}")

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self.machine.run(["pkill", "-f", OBSERVER.name], check=False) if self.machine.process else None
            self._process.kill()
            self._process.wait()
            self._process = None

    def samples(self) -> list[Sample]:
        """Everything that was seen so far."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return [sample for line in text.splitlines() if (sample := _sample(line)) is not None]

    def latest(self) -> Sample | None:
        """The newest sample."""
        with self.log.open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - 4096))
            lines = log.read().decode(errors="replace").splitlines()
        return next((sample for line in reversed(lines) if (sample := _sample(line)) is not None), None)


def _sample(line: str) -> Sample | None:
    """A line of the log; ``None`` for one that was torn when the host lost its power."""
    try:
        raw = json.loads(line)
        answer = raw["answer"]
        models = tuple(answer["models"]) if answer["models"] is not None else None
        return Sample(raw["t"], tuple(raw["held"]), raw["invocation"], raw["argv"], answer["t"], answer["status"], models)
    except (ValueError, KeyError, TypeError):
        return None
