"""A controller of the matrix: the real ``autotuner tune`` in a process of its own, with the smallest night that has everything in it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.hosts.machine import Machine, until
from tests.hosts.matrix.generated import NAMES, right
from tests.hosts.production import MODEL, SIMULATE

INSTRUMENT = Path(__file__).with_name("instrument.py")
PORT, UNIT, LABEL = 30000, "prod.service", "production"
STOP_S, READY_S = 3.0, 12.0
"""How long a stop and a start may take on a host of the matrix."""


@dataclass
class Controller:
    """One ``tune``; ``folder`` holds its documents, its state and what it said."""

    machine: Machine
    folder: Path
    ttl_s: float
    trials: int = 2
    window_s: float = 0.3
    simulate: Mapping[str, object] = field(default_factory=dict)
    mutations: Sequence[Sequence[str]] = ()
    gated: bool = False
    """Answers are judged by a real gate with few questions; else by that of simulated hosts, which asks nothing."""
    bare: bool = False
    """That gate runs code without a sandbox."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """On top of this process's own."""
    user: str = "root"
    conflicts: Sequence[str] = ()
    port: int = PORT
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.state = self.folder / "state"
        self.control = self.folder / "control"
        self.state.mkdir(parents=True, exist_ok=True)

    # --- documents -------------------------------------------------------------------------------------------------------------

    def _write_documents(self) -> None:
        host = {
            "apiVersion": "autotuner/v1",
            "kind": "Host",
            "metadata": {"name": "cell"},
            "transport": self.machine.ssh_document(user=self.user),
            "engine": {"name": "sglang", "python": self.machine.engine_python},
            "model": {"path": MODEL, "served_name": "kimi-k2.6", "context_length": 16384},
            "service": {"manager": "systemd", "production": {"unit": UNIT}, "conflicts": list(self.conflicts)},
            "endpoint": {"port": self.port},
            "limits": {
                "lease_ttl_s": self.ttl_s,
                "stop_timeout_s": STOP_S * self.machine.pace,
                "ready_timeout_s": READY_S * self.machine.pace,
                "stage_timeout_s": 6 * self.machine.pace,
                "request_timeout_s": 4 * self.machine.pace,
                "disk_free_gib": 0.001,
            },
            "simulate": {**SIMULATE, "launch_seconds": 0.3, **({"answers": right()} if self.gated else {}), **self.simulate},
        }
        space = {
            "apiVersion": "autotuner/v1",
            "kind": "SearchSpace",
            "metadata": {"name": "small"},
            "engine": "sglang",
            "parameters": {
                "max_running": {"type": "categorical", "choices": list(range(8, 168, 8))},
                "chunked_prefill": {"type": "categorical", "choices": list(range(1024, 9216, 1024))},
            },
            "fixed": {"tp": 8, "pp": 1, "ep": 1, "spec": "off", "graphs": True, "mem_fraction": 0.84},
            "baseline": {"max_running": 64, "chunked_prefill": 8192},
        }
        for name, document in (("cell.yaml", host), ("small.yaml", space)):
            (self.folder / name).write_text(yaml.safe_dump(document, sort_keys=False))

    # --- the process -----------------------------------------------------------------------------------------------------------

    def start(self, phase: str = "", *, strikes: str = "before", hold: bool = True, launch: int = 0) -> None:
        """Start it; it announces the phase (none: it only runs)."""
        self._write_documents()
        shutil.rmtree(self.control, ignore_errors=True)
        self.control.mkdir()
        task = {"folder": str(self.control), "phase": phase, "strikes": strikes, "hold": hold, "launch": launch}
        gate = {"problems": NAMES if self.gated else [], "bare": self.bare}
        (self.folder / "task.json").write_text(json.dumps({**task, **gate, "mutations": [list(one) for one in self.mutations]}))
        argv = [sys.executable, str(INSTRUMENT), str(self.folder / "task.json"), "--state-dir", str(self.state), "tune", "cell.yaml"]
        argv += ["--space", "small.yaml", "--trials", str(self.trials), "--confirm-rounds", "0", "--contexts", "60"]
        argv += ["--concurrency", "1,2", "--output-tokens", "8", "--window", f"{self.window_s:g}", "--warmup", "0"]
        argv += ["--recommendations", "recommendations", "--json"]
        with (self.folder / "out").open("ab") as out, (self.folder / "said").open("ab") as said:
            self.process = subprocess.Popen(
                argv,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=said,
                start_new_session=True,
                env={**os.environ, **self.environment},
            )

    def wait_reached(self, patience_s: float = 60.0) -> float:
        """When the phase was reached. Raises ``AssertionError`` when it ends before."""
        reached = self.control / "reached"
        try:
            until(lambda: reached.exists() or self.ended, "the phase", patience_s=patience_s)
        except AssertionError:
            raise AssertionError(f"the tuner never came to the phase: {self.said[-1000:]}") from None
        assert reached.exists(), f"the tuner ended with {self.code} before the phase: {self.errors or self.said[-2000:]}"
        return float(json.loads(reached.read_text())["t"])

    def go(self) -> None:
        """Let it go on."""
        (self.control / "go").touch()

    def signal(self, number: int) -> None:
        """Send it a signal; SIGINT as a terminal does, to everything that runs in its foreground."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            if number == signal.SIGINT:
                os.killpg(self.process.pid, number)
            else:
                os.kill(self.process.pid, number)

    def wait(self, patience_s: float = 90.0) -> int:
        """Its exit code. Raises ``AssertionError`` when it does not end."""
        try:
            until(lambda: self.ended, "its end", patience_s=patience_s)
        except AssertionError:
            raise AssertionError(f"the tuner did not end: {self.said[-1000:]}") from None
        assert self.code is not None
        return self.code

    def close(self) -> None:
        """End whatever is left of it."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        thaw(self)
        if self.state.is_mount():
            subprocess.run(["umount", "-l", str(self.state)], check=True)

    @property
    def ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    @property
    def code(self) -> int | None:
        """Exit code; negative for a signal; ``None`` while it runs."""
        return None if self.process is None else self.process.poll()

    # --- what it said and kept -------------------------------------------------------------------------------------------------

    @property
    def said(self) -> str:
        path = self.folder / "said"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def events(self) -> list[dict[str, Any]]:
        found = []
        for line in self.said.splitlines():
            with contextlib.suppress(ValueError):
                if line.startswith("{"):
                    found.append(json.loads(line))
        return found

    @property
    def errors(self) -> list[str]:
        """Messages and hints with which it ended."""
        return [f"{event['message']} ({event['hint']})" for event in self.events if event["event"] == "Error"]

    @property
    def acknowledged(self) -> list[int]:
        """Launches that it said to have an outcome."""
        return [event["number"] for event in self.events if event["event"] == "TrialEnded"]

    @property
    def records(self) -> list[dict[str, Any]]:
        """Launches that are kept, also those in the room that is reserved for a full disk; a torn line is none."""
        lines: list[str] = []
        for path in self.state.glob("studies/*/results.jsonl*"):
            lines += [line.strip("\0 ") for line in path.read_text(errors="replace").splitlines()]
        found = []
        for line in dict.fromkeys(lines):  # what was brought from the reserve to its place stands in both for a moment
            with contextlib.suppress(ValueError):
                if line.startswith("{"):
                    found.append(json.loads(line))
        return found

    @property
    def database(self) -> Path | None:
        return next(iter(self.state.glob("studies/*/study.db")), None)

    def running_trials(self) -> int | None:
        """Trials that the database holds as running; ``None`` without a database."""
        if self.database is None:
            return None
        with contextlib.closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM trials WHERE state = 'RUNNING'").fetchone()[0])

    def processes(self) -> list[int]:
        """Processes that it started and that still run: load workers."""
        assert self.process is not None
        found, queue = [], [self.process.pid]
        while queue:
            pid = queue.pop()
            with contextlib.suppress(OSError):
                children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
                found += children
                queue += children
        return found


def thaw(controller: Controller) -> None:
    """Let its databases be written again."""
    for database in controller.state.glob("studies/*/study.db"):
        subprocess.run(["chattr", "-i", str(database)], check=False, stderr=subprocess.DEVNULL)
