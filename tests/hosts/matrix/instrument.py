"""``instrument.py TASK.json ARG…``: the real command line of autotuner, which says when it comes to a phase and may wait there.

TASK.json: ``folder`` for the files ``reached``, ``go`` and ``calls.jsonl``; ``phase`` and ``launch`` (0, 1, …) to stop at; ``strikes``
``before`` or ``after`` the step; ``hold`` whether to wait for ``go``; ``mutations`` of the programs for the host, ``[file, old, new]``
each, for the controls that must fail; ``problems`` for a gate that asks these and judges the answers of the simulated engine, none for
the gate of simulated hosts, which asks nothing; ``bare`` whether that gate runs code without a sandbox, for the control that must fail.
"""

from __future__ import annotations

import ctypes
import dataclasses
import io
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autotuner import runner
from autotuner.cli.main import main
from autotuner.quality import gate, problems
from autotuner.quality.probe import Found
from autotuner.quality.sandbox import WALL_S, Ended
from autotuner.records import RecordStore
from autotuner.services import hostside
from autotuner.tuner import night

PR_SET_PDEATHSIG = 1
COMMANDS = {
    "units": "p0",
    "arm": "p1",
    "stop-production": "p2",
    "start": "p3",
    "status": "p4",
    "stop": "p8",
    "request-restore": "p9",
    "verify": "p10",
}
"""Which command on the host is the step of which phase; p5 is a cell, p6 the gate's check, p7 a record."""
OF_A_LAUNCH = {"p3", "p4", "p5", "p6", "p7", "p8"}


class Instrument:
    """Where the controller is, and whether to wait."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.folder = Path(task["folder"])
        self.phase, self.launch = task["phase"], task["launch"]
        self.strikes, self.hold = task["strikes"], task["hold"]
        self.marks: list[str] = []
        self.reached = False
        self.lock = threading.Lock()

    def step(self, phase: str | None, work: Callable[[], Any], what: str, mark: str = "") -> Any:
        """Do a step of a phase, and announce it before or after when it is the one that was asked for. ``mark`` names a new launch."""
        if mark and mark not in self.marks:
            self.marks.append(mark)
        here = len(self.marks) - 1 == self.launch or phase not in OF_A_LAUNCH
        wanted = phase == self.phase and not self.reached and here
        self.reached = self.reached or wanted
        if wanted and self.strikes == "before":
            self.announce()
        begin, error = now(), ""
        try:
            return work()
        except BaseException as failure:
            error = f"{type(failure).__name__}: {failure}"
            raise
        finally:
            self.note({"t": begin, "what": what, "took": round(now() - begin, 3), "error": error})
            if wanted and self.strikes == "after":
                self.announce()

    def announce(self) -> None:
        """Say that the phase is reached; wait if that was asked for."""
        waiting = self.folder / "reached.new"
        waiting.write_text(json.dumps({"t": now(), "phase": self.phase}))
        waiting.rename(self.folder / "reached")
        while self.hold and not (self.folder / "go").exists():
            time.sleep(0.01)

    def note(self, line: dict[str, Any]) -> None:
        with self.lock, (self.folder / "calls.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def now() -> float:
    """The observer's clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wrap(instrument: Instrument) -> None:
    """Put the instrument around the steps of all phases."""
    call, append, measure, judge = hostside.HostSide.call, RecordStore.append, runner.measure_cell, runner.Runner._judge

    def calling(self: hostside.HostSide, command: str, request: Any, **kwargs: Any) -> Any:
        mark = f"{request['name']} {request.get('mark')}" if command == "start" else ""
        return instrument.step(COMMANDS.get(command), lambda: call(self, command, request, **kwargs), command, mark)

    def appending(self: RecordStore, *args: Any, **kwargs: Any) -> Any:
        return instrument.step("p7", lambda: append(self, *args, **kwargs), "record")

    def measuring(*args: Any, **kwargs: Any) -> Any:
        return instrument.step("p5", lambda: measure(*args, **kwargs), "cell")

    def judging(self: runner.Runner, *args: Any, **kwargs: Any) -> Any:
        return instrument.step("p6", lambda: judge(self, *args, **kwargs), "gate")

    runner.Runner._judge = judging  # type: ignore[method-assign]
    hostside.HostSide.call = calling  # type: ignore[method-assign]
    RecordStore.append = appending  # type: ignore[method-assign]
    runner.measure_cell = measuring


def judge_answers(names: list[str], *, bare: bool) -> None:
    """Let the gate judge a simulated engine, whose answers are scripted, by a few of its questions. ``bare``: without a sandbox."""
    everything, open_gate = problems.questions(), night._gate
    few = dataclasses.replace(
        everything,
        problems=tuple(problem for problem in everything.problems if problem.name in names),
        greedy=everything.greedy[:1],
        digest="few",
    )

    def gate_of(plan: night.NightPlan, *args: Any) -> gate.Gate:
        real = plan.host.model_copy(update={"simulate": None})
        return open_gate(dataclasses.replace(plan, host=real), *args)

    gate.questions = lambda: few  # type: ignore[assignment]
    night._gate = gate_of
    if bare:
        night.find_sandbox = lambda _: Found(sandbox=Bare())


class Bare:
    """No sandbox at all."""

    name = "none"

    def run(self, programs: Sequence[tuple[str, bytes]], arguments: Sequence[str]) -> Ended:
        """As in ``Sandbox``, and with everything that this process may do."""
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            for name, content in programs:
                Path(folder, name).write_bytes(content)
            argv = [sys.executable, f"{folder}/{programs[0][0]}", *(argument.format(gate=folder) for argument in arguments)]
            done = subprocess.run(argv, capture_output=True, check=False, timeout=WALL_S)
        return Ended(how="killed" if done.returncode else "finished", output=done.stdout)


def mutate(mutations: list[list[str]]) -> None:
    """Change the programs for the host. Raises ``ValueError`` when a text to be changed is not there exactly once."""
    packed = hostside.packed

    def changed() -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(packed())) as before, zipfile.ZipFile(buffer, "w") as after:
            sources = {name: before.read(name).decode() for name in before.namelist()}
            for name, old, new in mutations:
                if sources[name].count(old) != 1:
                    raise ValueError(f"{name} has {sources[name].count(old)} times {old!r}")
                sources[name] = sources[name].replace(old, new)
            for name, text in sources.items():
                after.writestr(zipfile.ZipInfo(name), text)
        return buffer.getvalue()

    if mutations:
        changed()
        hostside.packed = changed


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a killed run of tests leaves no tuner behind
    given = json.loads(Path(sys.argv[1]).read_text())
    mutate(given["mutations"])
    if given["problems"]:
        judge_answers(given["problems"], bare=given["bare"])
    wrap(Instrument(given))
    sys.argv = ["autotuner", *sys.argv[2:]]
    main()
