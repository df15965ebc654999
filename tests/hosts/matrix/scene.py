"""A scene: one host with production, one tuner, one observer, and one fault that strikes in one phase."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

from tests.hosts.machine import Machine, until
from tests.hosts.matrix.controller import LABEL, PORT, UNIT, Controller
from tests.hosts.matrix.generated import right
from tests.hosts.matrix.oracle import Before, healthy, restored_at, units_left
from tests.hosts.matrix.watch import Watch, now

TTL_S = float(os.environ.get("AUTOTUNER_MATRIX_TTL", "5"))
"""How long a host waits for its tuner. A machine with little time to spare needs more. Read when the module is loaded."""
PATIENCE_S = 120.0
"""A tuner that has not ended by then hangs."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong. ``act`` does it when the phase is reached; ``heal`` undoes it once the tuner goes on."""

    act: Callable[[Scene], None]
    heal: Callable[[Scene], None] = lambda _: None
    strikes: str = "before"
    """``before`` or ``after`` the step of the phase. A cell is never waited for, and of the gate's check no more than its beginning:
    what strikes after the step of another phase strikes in the midst of it."""
    ttl_s: float = TTL_S
    trials: int | None = None
    """Launches of the night; by default as many as its code needs: one after the struck one where the session goes on."""
    launch: int = 0
    """The launch whose phase it strikes, where a phase is one of a launch."""
    hold: bool = True
    """The tuner waits in the phase until ``act`` is done."""
    simulate: Mapping[str, object] = field(default_factory=dict)
    prepare: Callable[[Scene], None] = lambda _: None
    """Before the tuner starts."""
    directives: Mapping[str, str] = field(default_factory=dict)
    """Of production's unit."""
    silences: bool = False
    """The host hears nothing of the tuner any more, and has T_r to restore itself; else production serves when the tuner ends."""
    kills: bool = False
    """The tuner dies of it."""
    boots: bool = False
    """The host is booted again."""
    mends: bool = False
    """Production cannot serve until ``mend``."""


class Evidence(Protocol):
    """What lies outside of a sandbox and would show that somebody got out."""

    def found(self) -> list[str]:
        """What was violated."""
        ...


@dataclass
class Scene:
    """Everything of one cell. Used as a context manager; nothing of it is left afterwards but the machine."""

    machine: Machine
    folder: Path
    fault: Fault
    phase: str
    trials: int = 1
    mutations: Sequence[Sequence[str]] = ()
    fault_at: float = 0.0
    healed_at: float = 0.0
    ended_at: float | None = None
    """When the tuner ended by itself."""
    others: list[Controller] = field(default_factory=list)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    operator_run: str = ""
    """The run of production that an operator started."""
    gated: bool = False
    """Answers are judged; in p6 they always are."""
    bare: bool = False
    """The gate runs code without a sandbox."""
    closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """What a fault has to take back."""
    evidence: Evidence | None = None
    """What would show that code got out of its sandbox."""

    def __post_init__(self) -> None:
        self.controller = Controller(
            self.machine,
            self.folder / "tuner",
            self.fault.ttl_s,
            trials=self.trials,
            simulate=self.fault.simulate,
            mutations=self.mutations,
            gated=self.gated or self.phase == "p6",
            bare=self.bare,
            window_s=1.5 if self.phase == "p5" else 0.3,
        )
        self.watch = Watch(self.machine, self.folder / "observed", port=PORT, unit=UNIT)

    def __enter__(self) -> Self:
        """Bring production up and look at it."""
        self.machine.production(UNIT, port=PORT, label=LABEL, directives=self.fault.directives, simulate={"launch_seconds": 0.1})
        self.fault.prepare(self)
        self.watch.start()
        until(lambda: (sample := self.watch.latest()) is not None and healthy(sample), "production in the observer's log")
        sample = self.watch.latest()
        assert sample is not None
        self.before = Before.of(self.machine, sample)
        return self

    def __exit__(self, *_: object) -> None:
        with self.closing, contextlib.ExitStack() as stack:
            for controller in (self.controller, *self.others):
                stack.callback(controller.close)
            for process in self.started:
                stack.callback(process.wait)
                stack.callback(process.kill)
            stack.callback(self.watch.stop)

    def play(self) -> None:
        """Start the tuner, let the fault strike, and wait until everything has come to rest."""
        fault, controller = self.fault, self.controller
        during = self.phase == "p5" or (self.phase == "p6" and fault.strikes == "after")
        hold = fault.hold and not during
        strikes = "before" if during else fault.strikes
        controller.start(self.phase, strikes=strikes, hold=hold, launch=fault.launch)
        controller.wait_reached(PATIENCE_S * self.machine.pace)
        self.fault_at = now()
        fault.act(self)
        controller.go()
        fault.heal(self)
        self.healed_at = now()
        self._rest()

    def _rest(self) -> None:
        """Until the tuner has ended and production serves, or for as long as a host may take."""
        if self.fault.kills:
            self.controller.wait()
        else:
            self.controller.wait(PATIENCE_S * self.machine.pace)
            self.ended_at = now()
        for other in self.others:
            other.wait(PATIENCE_S)
        if not self.fault.mends:
            self.wait_restored()
        time.sleep(0.5)  # what comes late is seen, too

    def wait_restored(self, patience_s: float = 40.0) -> None:
        """Until production serves, nothing of ours is left and both stay so for a moment; the oracles judge, not this wait."""
        deadline = time.monotonic() + patience_s * self.machine.pace
        while time.monotonic() < deadline:
            sample = self.watch.latest()
            if sample is not None and healthy(sample) and not units_left(self.machine):
                return
            time.sleep(0.2)

    def script(self, answers: Sequence[Mapping[str, str]]) -> None:
        """What candidates answer; what is not said here is answered right."""
        self.controller.simulate = {**self.controller.simulate, "answers": [*answers, *right()]}

    # --- what faults do --------------------------------------------------------------------------------------------------------

    def wait_healthy(self, patience_s: float = 40.0) -> None:
        """Until production serves, if it ever does."""
        with contextlib.suppress(AssertionError):
            until(
                lambda: (sample := self.watch.latest()) is not None and healthy(sample),
                "production",
                patience_s=patience_s * self.machine.pace,
            )

    def candidate(self) -> str:
        """The unit of the candidate that runs now; empty when none does."""
        pattern = f"autotuner-{PORT}-*.service"
        listed = self.machine.out("systemctl", "list-units", "--plain", "--no-legend", "--state=active,activating", pattern)
        return listed.split()[0] if listed else ""

    def signal_candidate(self, name: str) -> None:
        """Send the main process of the candidate a signal."""
        until(self.candidate, "a candidate")
        self.machine.run(["systemctl", "kill", "--kill-whom=main", f"--signal={name}", self.candidate()], check=False)

    def kill_sessions(self) -> None:
        """End every session of sshd at once."""
        self.machine.run(["pkill", "-KILL", "-f", "^sshd: root"], check=False)

    def clients(self) -> list[Controller]:
        return [self.controller, *self.others]

    @property
    def restored_s(self) -> float | None:
        """How long production did not serve after the fault; 0 when it never stopped."""
        since = restored_at(self.watch.samples())
        return None if since is None else max(0.0, round(since - self.fault_at, 2))


@contextlib.contextmanager
def play(
    machine: Machine,
    folder: Path,
    fault: Fault,
    phase: str,
    *,
    code: str = "R",
    mutations: Sequence[Sequence[str]] = (),
    bare: bool = False,
) -> Iterator[Scene]:
    """A scene that was played to its end."""
    trials = fault.trials or {"C": 2, "T": 3, "O": 2}.get(code, 1)
    with Scene(machine, folder, fault, phase, trials=trials, mutations=mutations, bare=bare) as scene:
        scene.play()
        yield scene
