"""A simulated host of a test's own, the real command line against it, and the promise that nothing of it outlives the test."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from autotuner.loadgen.control import ControlClient
from autotuner.services.hostside import STATE
from autotuner.services.onhost import processes
from tests.ports import free_port

AUTOTUNER = (sys.executable, "-c", "from autotuner.cli.main import main; main()")
PATIENCE_S = 90.0
"""Far above anything that is waited for; no test depends on how fast something was."""
GPU = {"name": "NVIDIA B300 SXM6 AC", "count": 8, "memory_gib": 275, "sm": 103, "link": "nvlink"}
TINY = ("--contexts", "60", "--concurrency", "1,2", "--output-tokens", "8", "--window", "0.1", "--warmup", "0")
"""The smallest matrix in which the three built-in workloads have two cells."""
BASELINE = {"max_running": 64, "chunked_prefill": 8192}


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.05)


@dataclass(frozen=True)
class Done:
    """A command that ended."""

    code: int
    out: str
    err: str

    def __post_init__(self) -> None:
        assert "Traceback" not in self.err, self.err
        assert "this is a bug" not in self.err, self.err

    @property
    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error: ") or ": error: " in line]

    @property
    def hints(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("hint: ")]


@dataclass
class Night:
    """A ``tune --json`` under way; its events are read as they come."""

    process: subprocess.Popen[str]
    events: list[dict[str, Any]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def wait_for(self, **wanted: object) -> dict[str, Any]:
        """The first event from here on that has these values."""
        for event in self.follow():
            if all(event.get(key) == value for key, value in wanted.items()):
                return event
        raise AssertionError(f"no event {wanted}; the tuner said {self.said} after {self.events[-3:]}")

    def stop(self, *signals: int) -> Done:
        """Send the signals one after the other, each after the answer to the one before, and wait for the end."""
        for number in signals:
            before = len(self.said)
            if number == signal.SIGINT:  # as a terminal does: to everything that runs in its foreground
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)
            if number != signal.SIGKILL:
                for _ in self.follow(before):
                    pass
        return self.end()

    def end(self) -> Done:
        for _ in self.follow():
            pass
        assert self.process.stdout is not None
        out = self.process.stdout.read()
        code = self.process.wait(timeout=PATIENCE_S)
        return Done(code, out, "\n".join(self.said))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def follow(self, said: int | None = None) -> Iterator[dict[str, Any]]:
        """Events until the stream ends, or until something that is no event was said after the first ``said`` such lines."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith("{"):
                event = json.loads(line)
                self.events.append(event)
                if event["event"] == "Error":
                    self.said += [f"error: {event['message']}", *([f"hint: {event['hint']}"] if event["hint"] else [])]
                yield event
            else:
                self.said.append(line.rstrip("\n"))
                if said is not None and len(self.said) > said:
                    return


@dataclass
class Lab:
    """One folder with documents, state and recommendations; one port with whatever serves there."""

    folder: Path
    port: int = field(default_factory=free_port)
    name: str = "lab"
    nights: list[Night] = field(default_factory=list)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = self.folder / "state"
        self.recommendations = self.folder / "recommendations"
        self.host_file = self.write_host()
        self.space_file = self.write_space()

    # --- documents -------------------------------------------------------------------------------------------------------------

    def write_host(self, *, production: object = "none", limits: Mapping[str, float] | None = None, **simulate: object) -> Path:
        document = {
            "apiVersion": "autotuner/v1",
            "kind": "Host",
            "metadata": {"name": self.name},
            "transport": {"type": "local"},
            "engine": {"name": "sglang"},
            "model": {
                "path": "simulated:kimi-k2.6",
                "drafter": "simulated:kimi-k2.6-dflash",
                "served_name": "kimi-k2.6",
                "context_length": 16384,
            },
            "service": {"production": production},
            "endpoint": {"port": self.port},
            "limits": {"disk_free_gib": 0.1, "stop_timeout_s": 10, **(limits or {})},
            "simulate": {"profile": "b300", "gpu": GPU, "launch_seconds": 0.2, **simulate},
        }
        return self.write(f"{self.name}.yaml", document)

    def write_space(self, **changes: object) -> Path:
        document = {
            "apiVersion": "autotuner/v1",
            "kind": "SearchSpace",
            "metadata": {"name": "small"},
            "engine": "sglang",
            "parameters": {
                "max_running": {"type": "categorical", "choices": [32, 64, 128]},
                "chunked_prefill": {"type": "categorical", "choices": [4096, 8192]},
            },
            "fixed": {"tp": 8, "pp": 1, "ep": 1, "spec": "off", "graphs": True, "mem_fraction": 0.84},
            "baseline": BASELINE,
            **changes,
        }
        return self.write("small.yaml", document)

    def write(self, name: str, document: object) -> Path:
        path = self.folder / name
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        return path

    # --- commands --------------------------------------------------------------------------------------------------------------

    def run(self, *arguments: object, env: Mapping[str, str] | None = None) -> Done:
        """Run one command line to its end."""
        done = subprocess.run(
            [*AUTOTUNER, "--state-dir", str(self.state), *map(str, arguments)],
            cwd=self.folder,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S * 2,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def tune_arguments(self, *more: object, trials: int = 1, rounds: int = 0) -> list[str]:
        """Without a matrix of their own the arguments get the smallest one."""
        given = [str(argument) for argument in more]
        tiny = [] if "--contexts" in given else [*TINY]
        space = [] if "--space" in given else ["--space", str(self.space_file)]
        budget = ["--trials", str(trials), "--confirm-rounds", str(rounds), "--recommendations", str(self.recommendations)]
        return ["tune", str(self.host_file), *space, *budget, *tiny, *given]

    def tune(self, *more: object, trials: int = 1, rounds: int = 0) -> Done:
        return self.run(*self.tune_arguments(*more, trials=trials, rounds=rounds))

    def start_night(self, *more: object, trials: int = 1, rounds: int = 0) -> Night:
        """Start ``tune --json`` and come back at once."""
        process = subprocess.Popen(
            [*AUTOTUNER, "--state-dir", str(self.state), *self.tune_arguments(*more, "--json", trials=trials, rounds=rounds)],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.nights.append(Night(process))
        return self.nights[-1]

    # --- what is there ---------------------------------------------------------------------------------------------------------

    def trials(self) -> list[dict[str, Any]]:
        """The trials of the host's newest study, as the command line tells them."""
        done = self.run("trials", self.name, "--json")
        assert done.code == 0, done.err
        return [json.loads(line) for line in done.out.splitlines()]

    @property
    def study(self) -> Path:
        (only,) = (self.state / "studies").iterdir()
        return only

    def documents(self) -> dict[str, bytes]:
        """Recommendations as they lie on the disk."""
        return {path.stem: path.read_bytes() for path in sorted(self.recommendations.glob(f"{self.name}/*.yaml"))}

    # --- production ------------------------------------------------------------------------------------------------------------

    def produce(self) -> list[str]:
        """Start by hand what ``tune --dry-run`` shows as the first launch, with a flag that only a person would choose; its argv."""
        planned = json.loads(self.tune("--dry-run", "--json").out)["launches"][0]["argv"]
        argv = [*planned, "--random-seed", "77"]
        process = subprocess.Popen(
            argv,
            cwd=self.folder,
            env={**os.environ, "MARK_OF_PRODUCTION": "as before"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.started.append(process)
        until(self.answers, f"production: {shlex.join(argv)}")
        return argv

    def start_foreign(self) -> subprocess.Popen[bytes]:
        """A web server of somebody else on the host's port."""
        argv = [sys.executable, "-m", "http.server", str(self.port), "--bind", "127.0.0.1", "--directory", str(self.folder)]
        process = subprocess.Popen(argv, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
        self.started.append(process)
        until(lambda: self.status("/") is not None, "the foreign server")
        return process

    def status(self, path: str) -> int | None:
        with ControlClient(f"http://127.0.0.1:{self.port}", timeout_s=5) as client:
            return client.status(path)

    def answers(self) -> bool:
        return self.status("/health_generate") == 200

    def servers(self) -> list[int]:
        """Simulated servers on this port, whoever started them."""
        found = [pid for pid in self.ours() if self._argument(pid, "--simulate")]
        return [pid for pid in found if self._argument(pid, str(self.port))]

    def assert_as_before(self, argv: list[str]) -> None:
        """One server, production's, with its command line, environment and folder; it generates tokens."""
        until(lambda: [processes.arguments(pid) for pid in self.servers()] == [argv], "production again, and no candidate")
        until(self.answers, "an answer of production")
        (pid,) = self.servers()
        assert processes.environment(pid)["MARK_OF_PRODUCTION"] == "as before"
        assert Path(f"/proc/{pid}/cwd").resolve() == self.folder.resolve()
        self.assert_only_servers()

    def assert_only_servers(self) -> None:
        """No tuner, load worker or watchdog is left."""
        until(lambda: set(self.ours()) <= {*self.servers(), *(process.pid for process in self.started)}, f"the end of {self._told()}")

    def ours(self) -> list[int]:
        """Everything that was started for this lab: named by its folder or its port."""
        marks = (str(self.folder).encode(), f"--port\0{self.port}\0".encode(), f"/sessions/{self.port}\0".encode())
        found = []
        for pid in processes.table():
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
                if pid != os.getpid() and any(mark in text for mark in marks):
                    found.append(pid)
        return found

    def close(self) -> None:
        """End everything. Raises when something was left that the test did not start."""
        try:
            if not any(night.process.poll() is None for night in self.nights):
                self.assert_only_servers()
                assert self.started or not self.servers(), f"a candidate was left: {self._told()}"
        finally:
            for night in self.nights:
                night.close()
            for pid in self.ours():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self.started:
                process.wait()
            until(lambda: not self.ours(), "the end of every process of the test")
            shutil.rmtree(f"{STATE}-{os.getuid()}/sessions/{self.port}", ignore_errors=True)

    def _told(self) -> list[str]:
        return [shlex.join(itertools.islice(processes.arguments(pid) or [], 8)) for pid in self.ours()]

    def _argument(self, pid: int, argument: str) -> bool:
        return argument in (processes.arguments(pid) or [])
