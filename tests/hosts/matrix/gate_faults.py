"""The faults that only the gate can meet: wrong answers, and answers whose code attacks the machine of the tuner."""

from __future__ import annotations

import secrets
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.hosts.matrix import generated
from tests.hosts.matrix.scene import Fault, Scene

LEFT_S = 30.0
"""Longer than any program of the gate may run, on a busy machine: what is there after that was left behind."""


@dataclass(frozen=True)
class Outside:
    """A server, a secret, a folder and a process that code in a sandbox has no business with."""

    server: socket.socket
    secret: Path
    places: tuple[Path, ...]
    bystander: subprocess.Popen[bytes]

    def found(self) -> list[str]:
        found = [f"sandbox: {path} was written from inside" for path in self.places if path.exists() and "planted" in path.read_text()]
        if self.bystander.poll() is not None:
            found.append("sandbox: a process of this machine was killed from inside")
        try:
            self.server.accept()[0].close()
            found.append("sandbox: a server of this machine was reached from inside")
        except BlockingIOError:
            pass
        return found


def programs() -> set[tuple[str, str]]:
    """Programs of the gate that run on this machine now: pid and when each started, for a pid is used again."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            if (b"gate" in command and b"/inside.py" in command) or (path / "status").read_text().find("\nUid:\t64917\t") > 0:
                found.add((path.name, (path / "stat").read_text().rpartition(")")[2].split()[19]))
        except OSError:
            continue
    return found


def left_behind() -> list[str]:
    """Programs of the gate that outlive their time. Cells run side by side, so that only what is there now and stays counts."""
    there = programs()
    deadline = time.monotonic() + LEFT_S
    while (staying := there & programs()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [f"sandbox: {len(staying)} programs were left behind"] if staying else []


def _attack(name: str) -> Fault:
    return Fault(act=_nothing, prepare=lambda scene: scene.script(generated.attacking(name)), launch=1)


def _prepare_escape(scene: Scene) -> None:
    """Everything that an answer could reach if it were run bare, with the tuner's rights."""
    word = secrets.token_hex(8)
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(0)
    folder = scene.folder / "outside"
    folder.mkdir()
    secret, home = folder / "secret", Path.home() / f".{word}"
    for path in (secret, home):
        path.write_text(word)
        path.chmod(0o600)
    places = (folder / "planted", Path("/var/tmp", word), Path("/dev/shm", word), Path("/usr", word), secret)  # noqa: S108
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], stdin=subprocess.DEVNULL, cwd="/")
    scene.started.append(bystander)
    scene.closing.callback(server.close)
    for path in (home, *places):
        scene.closing.callback(path.unlink, missing_ok=True)
    scene.controller.environment = {**scene.controller.environment, "HF_TOKEN": word}
    scene.evidence = Outside(server, secret, places, bystander)
    hidden = [str(path) for path in (secret, home, scene.controller.state, Path("/etc/shadow"), Path.home())]
    script = generated.escaping(
        port=server.getsockname()[1], secrets=hidden, word=word, places=list(map(str, places)), pids=[bystander.pid]
    )
    scene.script(script)


def _nothing(_: Scene) -> None:
    return


GATE_FAULTS: dict[str, Fault] = {
    "candidate-wrong-answers": Fault(act=_nothing, prepare=lambda scene: scene.script(generated.wrong()), launch=1),
    **{f"sandbox-{name}": _attack(name) for name in generated.ATTACKS},
    "sandbox-escape": Fault(act=_nothing, prepare=_prepare_escape, launch=1),
}
