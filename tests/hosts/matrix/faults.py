"""The faults of the matrix: what each does to the controller, the network, the host, the candidate or production."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

from tests.hosts.machine import until
from tests.hosts.matrix.controller import PORT, UNIT, Controller, thaw
from tests.hosts.matrix.gate_faults import GATE_FAULTS
from tests.hosts.matrix.scene import TTL_S, Fault, Scene

SHORT_S = 1.5
"""A gap that a lease outlives, with what TCP waits before it tries again."""
LONG_S = TTL_S + 2.0
NEVER = 1_000_000
HOST_DISK = "/srv/disk"
ON_HOST_DISK = ("/var/lib/autotuner", "/var/tmp", "/etc/systemd/system")  # noqa: S108 - paths of the test host
STUBBORN = """
import signal, socket, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").write(str(__import__("os").getpid()))
holder = socket.socket()
holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
holder.bind(("127.0.0.9", int(sys.argv[2])))
holder.listen()
time.sleep(600)
"""


def _sleep(seconds: float):
    return lambda _: time.sleep(seconds)


# --- the controller --------------------------------------------------------------------------------------------------------------


def _sigint_twice(scene: Scene) -> None:
    scene.controller.signal(signal.SIGINT)
    time.sleep(0.3)
    scene.controller.signal(signal.SIGINT)


def _stop_controller(scene: Scene) -> None:
    scene.controller.signal(signal.SIGSTOP)
    time.sleep(LONG_S)
    if scene.phase not in {"p0", "p1"}:
        scene.wait_healthy()
    scene.controller.signal(signal.SIGCONT)


def _kill_workers(scene: Scene, number: int) -> None:
    """Load workers: processes of the controller, or a program that it runs on the host."""

    def workers() -> bool:
        own = [pid for pid in scene.controller.processes() if b"worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        for pid in own:
            os.kill(pid, number)
        on_host = scene.machine.run(["pkill", f"-{number}", "-f", "[a]utotuner-load"], check=False).returncode == 0
        return bool(own) or on_host

    until(workers, "a load worker")


def _fill_controller(scene: Scene) -> None:
    for name in ("fill", "fill2"):
        with (scene.controller.state / name).open("wb", buffering=0) as file:
            size = 1 << 16
            while size:
                try:
                    file.write(b"\0" * size)
                except OSError:
                    size //= 2


def _free_controller(scene: Scene) -> None:
    time.sleep(SHORT_S)
    for name in ("fill", "fill2"):
        (scene.controller.state / name).unlink()


def _small_controller_disk(scene: Scene) -> None:
    argv = ["mount", "-t", "tmpfs", "-o", "size=8m", "small", str(scene.controller.state)]
    subprocess.run(argv, check=True)


def _lock_database(scene: Scene) -> None:
    """As a backup or a person with a database tool does."""
    database = scene.controller.database
    if database is None:
        time.sleep(0.1)
        return
    connection = sqlite3.connect(database, timeout=10, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    scene.controller.go()
    time.sleep(4)
    connection.close()


def _freeze_database(scene: Scene) -> None:
    """Nobody may write it, not even root."""
    for database in scene.controller.state.glob("studies/*/study.db"):
        subprocess.run(["chattr", "+i", str(database)], check=True)


def _thaw_database(scene: Scene) -> None:
    time.sleep(SHORT_S)
    thaw(scene.controller)


def _second_controller(scene: Scene) -> None:
    other = Controller(scene.machine, scene.folder / "second", scene.fault.ttl_s, trials=1)
    other.start()
    scene.others.append(other)
    until(lambda: other.ended, "the end of the second tuner") if scene.phase != "p0" else None


# --- the network -----------------------------------------------------------------------------------------------------------------


def _cut_long(scene: Scene) -> None:
    scene.machine.cut()
    scene.controller.go()
    time.sleep(LONG_S)
    if scene.phase not in {"p0", "p1"}:
        scene.wait_healthy()


def _black_hole(scene: Scene) -> None:
    scene.machine.drop(direction="out")
    scene.controller.go()
    time.sleep(LONG_S)
    if scene.phase not in {"p0", "p1"}:
        scene.wait_healthy()


def _bad_line(scene: Scene) -> None:
    scene.machine.lose(0.1)
    scene.machine.narrow()


def _mend_line(scene: Scene) -> None:
    until(lambda: scene.controller.ended, "the end of the tuner over a bad line", patience_s=120)
    scene.machine.undrop()
    scene.machine.widen()


def _kill_command(scene: Scene) -> None:
    """A moment after the step has begun."""
    scene.controller.go()
    time.sleep(0.04)
    scene.kill_sessions()


def _stop_sshd(scene: Scene) -> None:
    scene.machine.run(["systemctl", "stop", "ssh.service"])
    scene.kill_sessions()
    scene.controller.go()
    time.sleep(4)
    scene.machine.run(["systemctl", "start", "ssh.service"])


def _freeze_sshd(scene: Scene) -> None:
    scene.machine.run(["pkill", "-STOP", "sshd"])
    scene.controller.go()
    time.sleep(4)
    scene.machine.run(["pkill", "-CONT", "sshd"])


def _other_host_key(scene: Scene) -> None:
    scene.machine.new_host_key()
    scene.machine.run(["systemctl", "restart", "ssh.service"])
    scene.kill_sessions()


# --- the host --------------------------------------------------------------------------------------------------------------------


def _power_cut(scene: Scene) -> None:
    scene.machine.kill()
    scene.controller.go()
    scene.machine.up()
    scene.watch.start()


def _small_host_disk(scene: Scene) -> None:
    """One small disk for everything that the tuner writes on the host."""
    machine = scene.machine
    machine.small_disk(HOST_DISK, 12)
    for number, path in enumerate(ON_HOST_DISK):
        machine.run(["mkdir", "-p", path])
        machine.run(["cp", "-a", f"{path}/.", f"{HOST_DISK}/{number}"])
        machine.run(["mount", "--bind", f"{HOST_DISK}/{number}", path])


def _free_host(scene: Scene) -> None:
    time.sleep(SHORT_S)
    scene.machine.unfill(HOST_DISK)


def _stop_dbus(scene: Scene) -> None:
    scene.machine.run(["systemctl", "stop", "dbus.socket", "dbus.service"])


# --- the candidate and production ------------------------------------------------------------------------------------------------


def _stubborn_child(scene: Scene) -> None:
    """A child that ignores SIGTERM and holds the port, as a hung rank does."""
    machine, unit = scene.machine, scene.candidate()
    machine.write("/run/stubborn.py", STUBBORN)
    # Where both hierarchies are mounted, PID 1 kills by the one and names units by the other.
    script = 'for tree in systemd unified .; do echo $$ >"/sys/fs/cgroup/$tree/system.slice/$1/cgroup.procs"; done 2>/dev/null; '
    script += 'exec setsid python3 /run/stubborn.py /run/stubborn.pid "$2" </dev/null >/dev/null 2>&1'
    enter = ["nsenter", "-t", str(machine.leader), "-m", "-u", "-i", "-n", "-p", "--", "sh", "-c", script, "sh", unit, str(PORT)]
    scene.started.append(subprocess.Popen(enter, stdin=subprocess.DEVNULL, cwd="/"))
    until(lambda: machine.read("/run/stubborn.pid"), "the stubborn child")


def _operator_starts(scene: Scene) -> None:
    scene.machine.run(["systemctl", "start", UNIT])
    scene.operator_run = scene.machine.out("systemctl", "show", "-P", "InvocationID", UNIT)


def _operator_stops(scene: Scene) -> None:
    until(scene.candidate, "a candidate")
    scene.machine.run(["systemctl", "stop", scene.candidate()])


def _edit_unit(scene: Scene) -> None:
    scene.machine.run(["sh", "-c", f"echo '# changed by an operator' >>/etc/systemd/system/{UNIT}"])


def _fail_for_good(scene: Scene) -> None:
    scene.machine.fail_starts(NEVER)
    if scene.phase == "p10":  # it serves again already, and dies now
        scene.machine.run(["systemctl", "kill", "--signal=KILL", UNIT])


def _simulated(kind: str, **more: object) -> dict[str, object]:
    """A fault of the simulated server, in the second launch only."""
    return {"faults": [{"kind": kind, "launch": "candidate-1", "requests": None, **more}]}


def _nothing(_: Scene) -> None:
    return


FAULTS: dict[str, Fault] = {
    "controller-sigkill": Fault(act=lambda scene: scene.controller.signal(signal.SIGKILL), strikes="after", kills=True, silences=True),
    "controller-sigterm": Fault(act=lambda scene: scene.controller.signal(signal.SIGTERM), strikes="after"),
    "controller-double-sigint": Fault(act=_sigint_twice, strikes="after"),
    "controller-sigstop": Fault(act=_stop_controller, strikes="after", silences=True),
    "link-short": Fault(
        act=lambda scene: scene.machine.cut(), heal=lambda scene: (time.sleep(SHORT_S), scene.machine.join())[0], ttl_s=TTL_S + 2
    ),
    "link-long": Fault(act=_cut_long, heal=lambda scene: scene.machine.join(), silences=True),
    "black-hole": Fault(act=_black_hole, heal=lambda scene: scene.machine.undrop(), silences=True),
    "bad-line": Fault(act=_bad_line, heal=_mend_line, ttl_s=12.0),
    "session-killed": Fault(act=_kill_command),
    "sshd-stopped": Fault(act=_stop_sshd, ttl_s=12.0),
    "sshd-frozen": Fault(act=_freeze_sshd, ttl_s=12.0),
    "host-killed": Fault(act=_power_cut, strikes="after", boots=True, silences=True),
    "candidate-segfault": Fault(act=lambda scene: scene.signal_candidate("SEGV"), strikes="after", launch=1),
    "candidate-exits": Fault(act=_nothing, launch=1, simulate=_simulated("die", requests=1)),
    "candidate-sigkill": Fault(act=lambda scene: scene.signal_candidate("KILL"), strikes="after", launch=1),
    "candidate-never-ready": Fault(act=_nothing, launch=1, simulate=_simulated("never-ready")),
    "candidate-no-tokens": Fault(act=_nothing, launch=1, simulate=_simulated("hang", after_requests=2)),
    "candidate-stubborn": Fault(act=_stubborn_child),
    "candidate-in-band-error": Fault(act=_nothing, launch=1, simulate=_simulated("in-band-error", after_requests=2)),
    "candidate-truncated": Fault(act=_nothing, launch=1, simulate=_simulated("malformed-stream", after_requests=2)),
    "candidate-http-500": Fault(act=_nothing, launch=1, simulate=_simulated("http-500", after_requests=2)),
    "production-fails-thrice": Fault(act=lambda scene: scene.machine.fail_starts(3)),
    "production-start-limit": Fault(
        act=lambda scene: scene.machine.fail_starts(4),
        directives={"Restart": "always", "RestartSec": "100ms", "StartLimitBurst": "2", "StartLimitInterval": "600"},
    ),
    "production-slow": Fault(act=lambda scene: scene.machine.slow_starts(4)),
    "production-never": Fault(act=_fail_for_good, mends=True),
    "unit-edited": Fault(act=_edit_unit),
    "operator-starts-production": Fault(act=_operator_starts, strikes="after"),
    "operator-stops-candidate": Fault(act=_operator_stops, strikes="before"),
    "second-controller": Fault(act=_second_controller, ttl_s=30.0),
    "host-disk-full": Fault(act=lambda scene: scene.machine.fill(HOST_DISK), prepare=_small_host_disk),
    "host-disk-full-for-a-moment": Fault(act=lambda scene: scene.machine.fill(HOST_DISK), prepare=_small_host_disk, heal=_free_host),
    "controller-disk-full": Fault(act=_fill_controller, prepare=_small_controller_disk),
    "controller-disk-full-for-a-moment": Fault(act=_fill_controller, prepare=_small_controller_disk, heal=_free_controller),
    "database-locked": Fault(act=_lock_database, ttl_s=12.0),
    "database-read-only": Fault(act=_freeze_database, heal=_thaw_database),
    "dbus-down": Fault(act=_stop_dbus),
    "timer-unarmable": Fault(act=lambda scene: scene.machine.read_only("/etc/systemd/system")),
    "load-worker-killed": Fault(act=lambda scene: _kill_workers(scene, signal.SIGKILL), launch=1),
    "load-worker-stuck": Fault(act=lambda scene: _kill_workers(scene, signal.SIGSTOP), launch=1),
    "host-key-changed": Fault(act=_other_host_key, silences=True),
    **GATE_FAULTS,
}
