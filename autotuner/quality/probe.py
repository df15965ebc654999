"""Which sandbox works here: each is tried by running something in it that attempts to get out, beside a true server and true secrets."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotuner.model.recommendation import Check
from autotuner.quality.bubblewrap import Bubblewrap
from autotuner.quality.sandbox import Sandbox, call
from autotuner.quality.units import Units

_ATTEMPTS = """
import os, socket

def attempts(word, port, read, write):
    def network():
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    def become_root():
        os.setuid(0)
        open("/proc/sys/kernel/hostname", "w").close()
    tries = [("network", network), ("root", become_root)]
    tries += [("read " + path, lambda path=path: os.listdir(path) if os.path.isdir(path) else open(path).close()) for path in read]
    tries += [("write " + path, lambda path=path: open(path, "a").close()) for path in write]
    reached = ["environment" for value in os.environ.values() if word in value]
    for name, attempt in tries:
        try:
            attempt()
        except (OSError, ImportError):
            continue
        reached.append(name)
    return [word[::-1], reached]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A sandbox that works, or ``None`` and why each kind does not."""

    sandbox: Sandbox | None
    reasons: tuple[str, ...] = ()


def find_sandbox(hidden: Sequence[Path] = (), kinds: Sequence[Callable[[], Sandbox]] | None = None) -> Found:
    """The first kind of sandbox that runs a program and keeps it in. ``hidden`` are folders that must not be seen from there.

    systemd's comes first: it limits the memory of all processes together. Never raises.
    """
    reasons = []
    for kind in kinds if kinds is not None else (lambda: Units(hidden), Bubblewrap):
        try:
            sandbox = kind()
        except LookupError as error:
            reasons.append(str(error.args[0]))
            continue
        trouble = probe(sandbox, hidden)
        if trouble is None:
            return Found(sandbox=sandbox, reasons=tuple(reasons))
        reasons.append(f"{sandbox.name}: {trouble}")
    return Found(sandbox=None, reasons=tuple(reasons))


def sandbox_check(hidden: Sequence[Path] = ()) -> Check:
    """What ``doctor`` says about it. Without a sandbox a night goes on, and says that code was not checked."""
    found = find_sandbox(hidden)
    if found.sandbox is not None:
        return Check(name="sandbox", status="pass", detail=f"generated code runs in {found.sandbox.name} on this machine, and stays in")
    detail = f"generated code cannot be run safely on this machine, so answers are judged without it: {'; '.join(found.reasons)}"
    return Check(name="sandbox", status="warning", detail=detail, hint="install bubblewrap: apt-get install bubblewrap")


def probe(sandbox: Sandbox, hidden: Sequence[Path] = ()) -> str | None:
    """Try to get out of a sandbox. ``None`` when it runs code and keeps it in, else what is wrong with it."""
    word = secrets.token_hex(8)
    with socket.create_server(("127.0.0.1", 0)) as server, tempfile.NamedTemporaryFile("w") as secret:
        secret.write(word)
        secret.flush()
        Path(secret.name).chmod(0o644)
        # A home that lies open to everybody would still be a user's.
        read = ["/root", "/home", "/etc/passwd", "/etc/shadow", secret.name, *(str(path.absolute()) for path in hidden)]
        write = [f"/usr/{word}", f"/etc/{word}", f"/var/tmp/{word}", f"/dev/shm/{word}", f"{Path(secret.name).parent}/{word}/x"]  # noqa: S108
        known = {"AUTOTUNER_PROBE": word}
        before = {name: os.environ.get(name) for name in known}
        os.environ.update(known)
        try:
            values = call(sandbox, _ATTEMPTS, "attempts", [[word, server.getsockname()[1], read, write]])
        finally:
            for name, former in before.items():
                if former is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = former
    if not values.found:
        return f"nothing can be run in it ({values.detail})"
    value = values.found[0].get("value")
    answer = value.get("list") if isinstance(value, dict) else None
    if not isinstance(answer, list) or len(answer) != 2 or answer[0] != word[::-1]:
        return f"what was run in it did not answer: {str(values.found[0])[:200]}"
    reached = answer[1].get("list") if isinstance(answer[1], dict) else None
    return None if reached == [] else f"what was run in it reached {', '.join(map(str, reached or ['nobody knows what']))}"
