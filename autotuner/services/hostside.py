"""HostSide: the way to the small programs that run on the host itself (``services/onhost``)."""

from __future__ import annotations

import copy
import errno
import hashlib
import importlib.resources
import io
import json
import shlex
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from autotuner.errors import AutotunerError, Refused, StopStudy, TransportError
from autotuner.services import grant
from autotuner.services.base import LaunchSpec
from autotuner.services.onhost.version import digest
from autotuner.transports.base import Completed, Transport

LEASES = "/var/tmp/autotuner-lease"  # noqa: S108 - one folder for every user of the machine is the point; sticky, contents verified
STATE = "/var/tmp/autotuner"  # noqa: S108 - completed with the user's id; private, and checked to be so
SYSTEM_STATE = "/var/lib/autotuner"
_WHO = "import os, sys; print(sys.executable, os.getuid(), '%d.%d' % sys.version_info[:2], sep='\\n')"
_MAIN = "import sys\nfrom onhost.commands import main\nsys.exit(main())\n"
_FROM_MEMORY = """\
import os, sys
held = os.memfd_create("autotuner")
with os.fdopen(os.dup(held), "wb") as file:
    file.write(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))
sys.path.insert(0, "/proc/self/fd/%d" % held)
from onhost.commands import main
sys.exit(main())
"""
"""Runs a packed program that comes on standard input, after its length and before the request: nothing is written on the host."""
_NOT_FOUND = 127
_OLDEST_PYTHON = (3, 8)
_NO_PROGRAM = 2
"""What Python ends with when the file that it is to run is not there."""


class HostSide:
    """Installs the host's programs as one file under the state folder and calls them. Needs nothing but the transport."""

    def __init__(
        self,
        transport: Transport,
        *,
        pythons: Sequence[str] = ("python3",),
        state: str | None = None,
        leases: str = LEASES,
        system: bool = False,
    ) -> None:
        """``system``: for systemd, as root, or through ``sudo`` and the program that an administrator installed.

        ``state`` is by default ``/var/lib/autotuner`` then, else ``/var/tmp/autotuner-UID``: both outlive a reboot, and are private.
        """
        self.transport = transport
        self.leases = leases
        self._pythons = tuple(pythons)
        self._wanted = state
        self._system = system
        self.only_looks = False
        """Nothing is to be changed there: a disk on which the programs cannot be written is no hindrance."""
        self._state = ""
        self._command: tuple[str, ...] = ()
        self._program = b""
        """Sent along with every call, where it could not be written there."""

    @property
    def state(self) -> str:
        """The state folder on the host."""
        self._ensure()
        return self._state

    def call(self, command: str, request: Mapping[str, Any], *, timeout_s: float = 30.0) -> dict[str, Any]:
        """Call one of the host's programs; each may be called again without harm, so a lost connection is made anew and it is.

        ``{"error": …}`` is returned, not raised, except for a full or read-only disk.

        Raises ``TransportError`` when the outcome is unknown.
        """
        self._ensure()
        done = self._run(command, request, timeout_s)
        if done.returncode == _NO_PROGRAM and "can't open file" in done.stderr:  # somebody removed it: it is brought there again
            self._command = ()
            self._ensure()
            done = self._run(command, request, timeout_s)
        try:
            reply = json.loads(done.stdout)
        except ValueError as error:
            tail = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise TransportError(
                f"{self.transport.address}: {command} ended with {done.returncode} and no answer: {''.join(tail) or 'no output'}"
            ) from error
        if reply.get("errno") in {errno.ENOSPC, errno.EROFS, errno.EDQUOT}:
            raise AutotunerError(
                f"{self.transport.address}: {command}: {reply['error']}", hint=f"free some space under {self._state}, or make it writable"
            )
        return dict(reply)

    def _run(self, command: str, request: Mapping[str, Any], timeout_s: float) -> Completed:
        program = b"%d\n%s" % (len(self._program), self._program) if self._program else b""
        said = program + json.dumps(request).encode()
        return self.transport.run([*self._command, command], timeout_s=timeout_s, stdin=said, again=True)

    def over(self, transport: Transport) -> HostSide:
        """The same programs over another connection to the same host; nothing is installed anew."""
        self._ensure()
        other = copy.copy(self)
        other.transport = transport
        return other

    def by_hand(self, command: str, folder: str) -> str:
        """The command line with which a person on the host calls one of the programs."""
        self._ensure()
        return shlex.join([word for word in self._command if word != "-n"] + [command, folder])

    def _ensure(self) -> None:
        if self._command:
            return
        python, uid = self._interpreter()
        if self._system and uid != 0:
            self._command = self._granted()
            self._state = self._wanted or SYSTEM_STATE
            return
        state = self._wanted or (SYSTEM_STATE if self._system else f"{STATE}-{uid}")
        data = packed()
        program = f"{state}/onhost-{hashlib.sha256(data).hexdigest()[:12]}.pyz"
        try:
            self._private_folder(state, uid)
            if not self.transport.exists(program):
                self._install(python, program, data)
        except (TransportError, Refused):
            raise
        except AutotunerError:
            if not self.only_looks:
                raise
            self._program = data
        self._state = state
        self._command = (python, "-E", "-s", "-S", *(("-c", _FROM_MEMORY) if self._program else (program,)))

    def _install(self, python: str, program: str, data: bytes) -> None:
        self.transport.write(f"{program}.new", data, mode=0o600)
        done = self.transport.run([python, "-c", grant.COMPILE, f"{program}.new", program], timeout_s=60, again=True)
        if not done.ok:
            raise AutotunerError(
                f"{self.transport.address}: cannot make {program}: {''.join(done.stderr.strip().splitlines()[-1:])}",
                hint="free some space there",
            )
        self.transport.remove(f"{program}.new")

    def _granted(self) -> tuple[str, ...]:
        """The installed program behind ``sudo``, when it is this version's and may be called."""
        command = ("sudo", "-n", grant.PROGRAM)
        hint = "have an administrator of the host run what `autotuner service HOST grant` prints, or connect as root"
        done = self.transport.run([*command, "version"], timeout_s=30, stdin=b"{}", again=True)
        try:
            found = json.loads(done.stdout)["digest"]
        except (ValueError, KeyError, TypeError) as error:
            said = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise Refused(f"{self.transport.address}: units cannot be managed without root: {''.join(said)}", hint=hint) from error
        if found != digest(sources()):
            raise Refused(f"{self.transport.address}: {grant.PROGRAM} is of another version of autotuner", hint=hint)
        return command

    def _interpreter(self) -> tuple[str, int]:
        done: Completed | None = None
        for python in self._pythons:
            done = self.transport.run([python, "-c", _WHO], timeout_s=30, again=True)
            if done.ok:
                executable, uid, version = done.stdout.split("\n")[:3]
                if tuple(map(int, version.split("."))) >= _OLDEST_PYTHON:
                    return executable, int(uid)
        said = "not found" if done is None or done.returncode == _NOT_FOUND else (done.stderr.strip() or f"older than {_OLDEST_PYTHON}")
        raise StopStudy(
            f"{self.transport.address}: no usable Python on the host ({', '.join(self._pythons)}: {said})",
            hint="install python3 (3.8 or newer) on the host",
        )

    def _private_folder(self, state: str, uid: int) -> None:
        made = self.transport.run(["mkdir", "-p", "-m", "700", state], timeout_s=30, again=True)
        if not made.ok:
            raise AutotunerError(
                f"{self.transport.address}: cannot make {state}: {made.stderr.strip()}", hint="free some space, or make its folder writable"
            )
        found = self.transport.run(["stat", "-c", "%u %a %F", state], timeout_s=30, again=True).stdout.strip().split(maxsplit=2)
        if found[:1] != [str(uid)] or found[2] != "directory" or int(found[1], 8) & 0o022:
            raise Refused(
                f"{self.transport.address}: {state} is not a private folder of user id {uid} (owner, mode, kind: {' '.join(found)})",
                hint=f"look at what made it, then remove it: ls -la {state}",
            )


def sources() -> dict[str, bytes]:
    """The host's programs by their place in the packed file."""
    folder = importlib.resources.files("autotuner.services.onhost")
    found = {f"onhost/{entry.name}": entry.read_bytes() for entry in folder.iterdir() if entry.name.endswith(".py")}
    return dict(sorted({**found, "__main__.py": _MAIN.encode()}.items()))


def packed() -> bytes:
    """The host's programs as one executable zip file; the same bytes for the same sources."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in sources().items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


def grant_script(user: str, units: Sequence[str]) -> str:
    """The script with which an administrator lets ``user`` have these units managed. Raises ``UsageError`` for names that are none."""
    return grant.script(user, units, packed())


def not_started(spec: LaunchSpec, reply: Mapping[str, Any]) -> AutotunerError:
    """The error for a refusal of the host's ``start``."""
    message = f"cannot start {spec.name}: {reply['error']}"
    kind = reply.get("kind")
    if kind == "exec":
        return StopStudy(message, hint="check engine.python and engine.cwd of the host document")
    if kind == "secret":
        return StopStudy(message, hint="set it where the tuner runs its commands on the host, or correct `secrets:` of the host document")
    if kind == "by-hand":
        return StopStudy(message, hint="this host is left to whoever did that; start again with the same command to resume")
    if kind in {"not-allowed", "name", "manager"}:
        return StopStudy(message, hint="look at the host: systemctl --failed; journalctl -xe")
    if kind == "fenced":
        return StopStudy(message, hint="the host's watchdog brought production back; start again with the same command to resume")
    return TransportError(message)
