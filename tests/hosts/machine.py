"""Booted test hosts: real systemd, journald and sshd in namespaces of their own, reached over a network link of their own. Root only.

A host is a directory on an overlay over the base system, booted by systemd-nspawn. What is done to it from here goes in by ``nsenter``,
never by ssh: the way in that is tested is not the way in that a test relies on. It ends with the process that booted it, and what a
killed process left is cleared away by the next one that takes the same number.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.hosts.base import STATE, Base, mounts
from tests.hosts.production import Production

PATIENCE_S = 60.0
"""Far above anything that is waited for; no test depends on how fast something was."""
NETWORK = "10.77"
_CGROUPS = ("systemd", "unified", "memory", "pids", "cpu")
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}


def until(condition: Callable[[], object], what: str, *, patience_s: float = PATIENCE_S) -> None:
    """Wait until something holds. Raises ``AssertionError`` when it never does.

    Most questions cost a process on the host: they become rarer, so that tests that wait leave the processors to those that work.
    """
    deadline = time.monotonic() + patience_s
    pause_s = 0.02
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(pause_s)
        pause_s = min(1.2 * pause_s, 0.1)


class Machine(Production):
    """One host. ``name`` has up to twelve of ``a-z 0-9``; ``number`` (0–254) decides its addresses and is used by one host at a time."""

    engine_python = sys.executable
    """The interpreter on the host in which the simulated engine runs: for ``engine.python`` of host documents."""
    slice = "/sys/fs/cgroup/systemd/system.slice"
    """Folder on the host of the cgroups of its units."""
    pace = 1.0
    """How many times longer a step on the host may take than on this machine."""
    clock_offset_s = 0.0
    """What to add to the host's time since its start to get this machine's."""

    def __init__(self, base: Base, name: str, number: int) -> None:
        self.base = base
        self.name = name
        self.number = number
        self.folder = STATE / "hosts" / name
        self.root = self.folder / "root"
        self.address = f"{NETWORK}.{number}.2"
        self.controller_address = f"{NETWORK}.{number}.1"
        self.link = f"ve-{name}"
        self.process: subprocess.Popen[bytes] | None = None
        self.leader = 0

    # --- power -----------------------------------------------------------------------------------------------------------------

    def up(self, *, binds: Sequence[str] = ()) -> Machine:
        """Boot it: with the disk as it was when it has one, else fresh. ``binds`` are further options of systemd-nspawn."""
        assert self.process is None, f"{self.name} is up"
        self._mount()
        folders = self._make_cgroups()
        nspawn = ["systemd-nspawn", "-q", "-D", str(self.root), "--boot", "--keep-unit", "--register=no", "--network-veth", "-M", self.name]
        nspawn += ["--console=pipe", "--link-journal=no", "--resolv-conf=off", "--timezone=off", *mounts(), *binds]
        boot = [sys.executable, "-S", "-E", str(Path(__file__).with_name("boot.py")), *map(str, folders), "--"]
        with (self.folder / "console").open("ab") as console:
            self.process = subprocess.Popen([*boot, *nspawn], stdin=subprocess.DEVNULL, stdout=console, stderr=console)
        until(self._booting, f"PID 1 of {self.name}: see {self.folder}/console")
        self._connect()
        for controller in ("memory", "pids", "cpu"):  # nspawn hands them over read-only: limits of units would not bind
            self._enter(["mount", "-o", "remount,bind,rw", f"/sys/fs/cgroup/{controller}"], "-m", check=False)
        until(self._booted, f"the boot of {self.name}: see {self.folder}/console")
        self.run(["systemctl", "daemon-reexec"])
        until(self.reachable, f"sshd of {self.name}")
        return self

    def kill(self) -> None:
        """Power off at once, as a power cut does to processes. The disk stays as it was; ``up`` boots it again."""
        for pid in _children(self.process.pid) if self.process else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process:
            self.process.kill()
            self.process.wait()
        self.process, self.leader = None, 0
        self._remove_link()

    def down(self) -> None:
        """Power off and forget the disk. Nothing of the host is left: no process, mount, link, cgroup or file."""
        self.kill()
        self._clear()

    def clear_leftovers(self) -> None:
        """Remove what a killed process of tests left of this host."""
        until(self._killed, f"the end of every process of {self.name}")
        self._remove_link()
        self._clear()

    def fresh(self) -> Machine:
        """Boot it with the base's disk again, about two seconds."""
        self.down()
        return self.up()

    # --- the ways in -----------------------------------------------------------------------------------------------------------

    def run(
        self, argv: Sequence[str], *, check: bool = True, stdin: str = "", timeout_s: float = PATIENCE_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the host as root, without ssh. Raises ``AssertionError`` with what it said when it fails."""
        done = self._enter(argv, "-m", "-u", "-i", "-n", "-p", stdin=stdin, timeout_s=timeout_s)
        assert not check or done.returncode == 0, f"{self.name}: {' '.join(argv)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def command(self, argv: Sequence[str]) -> list[str]:
        """Command on this machine that runs one on the host as root, without ssh."""
        return ["nsenter", "-t", str(self.leader), "-m", "-u", "-i", "-n", "-p", "--", *argv]

    def out(self, *argv: str) -> str:
        """What a command on the host prints, without surrounding white space; it may fail."""
        return self.run(argv, check=False).stdout.strip()

    def write(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """Write a file on the host, below ``/run`` and ``/tmp`` too, and make the folders above it."""
        script = 'mkdir -p "$(dirname "$1")" && cat >"$1" && chmod "$2" "$1"'
        self.run(["sh", "-c", script, "sh", path, f"{mode:o}"], stdin=text)

    def read(self, path: str) -> str:
        """A file of the host; empty when there is none."""
        return self.run(["cat", path], check=False).stdout

    def exists(self, path: str) -> bool:
        return self.run(["test", "-e", path], check=False).returncode == 0

    def ssh_document(self, *, user: str = "root") -> dict[str, object]:
        """``transport:`` of a host document. The known host key was read from the host's disk, not taken from a first contact."""
        return {
            "type": "ssh",
            "hostname": self.address,
            "user": user,
            "port": 22,
            "identity_file": str(self.base.key),
            "known_hosts": str(self.known_hosts),
            "config_file": "none",
        }

    @property
    def known_hosts(self) -> Path:
        """File with this host's key alone."""
        return self.folder / "known_hosts"

    def add_user(self, name: str) -> None:
        """A user without any privilege who may come in with the same key."""
        self.run(["useradd", "--create-home", "--shell", "/bin/bash", name])
        self.run(["install", "-d", "-m", "700", "-o", name, "-g", name, f"/home/{name}/.ssh"])
        self.run(["install", "-m", "600", "-o", name, "-g", name, "/root/.ssh/authorized_keys", f"/home/{name}/.ssh/authorized_keys"])

    def reachable(self) -> bool:
        """Whether sshd says hello."""
        try:
            with socket.create_connection((self.address, 22), timeout=2) as link:
                return link.recv(4) == b"SSH-"
        except OSError:
            return False

    # --- the network -----------------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Pull the network cable."""
        self._enter(["ip", "link", "set", "host0", "down"], "-n")

    def join(self) -> None:
        """Put the cable back."""
        self._enter(["ip", "link", "set", "host0", "up"], "-n")

    def drop(self, *, direction: str = "both") -> None:
        """Lose every packet silently: those ``in`` to the host, those ``out`` of it, or ``both``."""
        self._firewall(direction)

    def lose(self, share: float) -> None:
        """Lose this share of the packets of both directions."""
        self._firewall("both", "-m", "statistic", "--mode", "random", "--probability", f"{share:g}")

    def undrop(self) -> None:
        """No packet is lost any more."""
        for chain in ("INPUT", "OUTPUT"):
            self._enter(["iptables", "-F", chain], "-n")

    def narrow(self, rate: str = "256kbit") -> None:
        """Let no more than this through, in each direction, with up to 400 ms of waiting packets."""
        shape = ["root", "tbf", "rate", rate, "burst", "16kb", "latency", "400ms"]
        _call("tc", "qdisc", "replace", "dev", self.link, *shape)
        self._enter(["tc", "qdisc", "replace", "dev", "host0", *shape], "-n")

    def widen(self) -> None:
        """As fast as it can again."""
        _call("tc", "qdisc", "del", "dev", self.link, "root", check=False)
        self._enter(["tc", "qdisc", "del", "dev", "host0", "root"], "-n", check=False)

    # --- the disk --------------------------------------------------------------------------------------------------------------

    def small_disk(self, path: str, megabytes: int) -> None:
        """Put a disk of this size at a folder of the host."""
        self.run(["mkdir", "-p", path])
        self.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "small", path])

    def fill(self, path: str) -> None:
        """Fill the disk under a folder to its last byte."""
        self.run(["sh", "-c", 'cat /dev/zero >"$1/fill" 2>/dev/null; cat /dev/zero >"$1/fill2" 2>/dev/null; true', "sh", path])

    def unfill(self, path: str) -> None:
        """Free what ``fill`` took."""
        self.run(["rm", "-f", f"{path}/fill", f"{path}/fill2"])

    def read_only(self, path: str) -> None:
        """Make a folder of the host read-only."""
        self.run(["mount", "--bind", path, path])
        self.run(["mount", "-o", "remount,bind,ro", path])

    def writable(self, path: str) -> None:
        """Undo ``read_only`` or ``small_disk``."""
        self.run(["umount", "-l", path])

    # --- inside ----------------------------------------------------------------------------------------------------------------

    def _enter(
        self, argv: Sequence[str], *namespaces: str, check: bool = True, stdin: str = "", timeout_s: float = PATIENCE_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in some of the host's namespaces: with ``-m`` it is the host's own program."""
        done = subprocess.run(
            ["nsenter", "-t", str(self.leader), *namespaces, "--", *argv],
            env={**os.environ, **_ENVIRONMENT} if "-m" not in namespaces else _ENVIRONMENT,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            cwd="/",
            check=False,
        )
        assert "-m" in namespaces or not check or done.returncode == 0, f"{self.name}: {' '.join(argv)}: {done.stderr}"
        return done

    def _firewall(self, direction: str, *match: str) -> None:
        for chain in {"in": ("INPUT",), "out": ("OUTPUT",), "both": ("INPUT", "OUTPUT")}[direction]:
            side = "-i" if chain == "INPUT" else "-o"
            self._enter(["iptables", "-A", chain, side, "host0", *match, "-j", "DROP"], "-n")

    def _mount(self) -> None:
        for part in ("disk/up", "disk/work", "root"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        if not self.root.is_mount():
            layers = f"lowerdir={self.base.root},upperdir={self.folder}/disk/up,workdir={self.folder}/disk/work"
            _call("mount", "-t", "overlay", self.name, "-o", layers, str(self.root))
        key = self.root / "etc/ssh/ssh_host_ed25519_key"
        if not key.exists():
            (self.root / "etc/hostname").write_text(f"{self.name}\n")
            self.new_host_key()
        public = key.with_suffix(".pub").read_text().split()
        self.known_hosts.write_text(f"{self.address} {public[0]} {public[1]}\n")

    def new_host_key(self) -> None:
        """Give it another host key; ``known_hosts`` keeps the old one until the next boot."""
        key = self.root / "etc/ssh/ssh_host_ed25519_key"
        for path in (key, key.with_suffix(".pub")):
            path.unlink(missing_ok=True)
        _call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.name, "-f", str(key))

    def _booting(self) -> bool:
        """Whether PID 1 of the host runs and its end of the link is there."""
        assert self.process is not None
        assert self.process.poll() is None, f"{self.name}: {(self.folder / 'console').read_text(errors='replace')[-2000:]}"
        for pid in _children(self.process.pid):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text() == "systemd\n":
                    self.leader = pid
        return self.leader != 0 and Path(f"/sys/class/net/{self.link}").exists()

    def _connect(self) -> None:
        # A host that is down is unreachable: what is sent to it must not look for it beyond this machine.
        _call("ip", "route", "replace", "unreachable", f"{NETWORK}.{self.number}.0/24", "metric", "4000")
        _call("ip", "addr", "replace", f"{self.controller_address}/24", "dev", self.link)
        _call("ip", "link", "set", self.link, "up")
        self._enter(["ip", "addr", "replace", f"{self.address}/24", "dev", "host0"], "-n")
        self._enter(["ip", "link", "set", "host0", "up"], "-n")

    def _booted(self) -> bool:
        return self.out("systemctl", "is-system-running") in {"running", "degraded"}

    # --- what is left ----------------------------------------------------------------------------------------------------------

    def _make_cgroups(self) -> list[Path]:
        folders = _cgroups(self.name)
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "cgroups").write_text("\n".join(map(str, folders)))
        return folders

    def _known_cgroups(self) -> list[Path]:
        """Of this process, and of the one that booted the host last."""
        kept = self.folder / "cgroups"
        lines = kept.read_text().splitlines() if kept.exists() else []
        return list(dict.fromkeys([*_cgroups(self.name), *map(Path, lines)]))

    def _killed(self) -> bool:
        """Kill what is in the host's cgroups; whether nothing is. A host outlives its nspawn when that one is killed."""
        files = [path for folder in self._known_cgroups() if folder.is_dir() for path in folder.rglob("cgroup.procs")]
        left = {int(word) for path in files for word in _words(path)}
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    def _remove_link(self) -> None:
        if Path(f"/sys/class/net/{self.link}").exists():
            _call("ip", "link", "del", self.link, check=False)
        until(lambda: not Path(f"/sys/class/net/{self.link}").exists(), f"the end of {self.link}")

    def _clear(self) -> None:
        _call("ip", "route", "del", "unreachable", f"{NETWORK}.{self.number}.0/24", "metric", "4000", check=False)
        while self.root.is_mount():
            _call("umount", "-l", str(self.root))
        until(self._cgroups_gone, f"the end of the cgroups of {self.name}")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _cgroups_gone(self) -> bool:
        folders = self._known_cgroups()
        for folder in folders:
            for path, _, _ in os.walk(folder, topdown=False):
                with contextlib.suppress(OSError):
                    Path(path).rmdir()
        return not any(folder.exists() for folder in folders)


def _cgroups(name: str) -> list[Path]:
    """Folders of the cgroups of a host, below those of this process, in whatever hierarchies this machine has."""
    top = Path("/sys/fs/cgroup")
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        hierarchy = {"": "" if (top / "cgroup.controllers").exists() else "unified", "name=systemd": "systemd"}.get(
            controllers, controllers
        )
        if (top / hierarchy).is_dir() and (not hierarchy or hierarchy in _CGROUPS):
            found.append(top / hierarchy / path.strip("/") / f"host-{name}")
    return found


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _call(*argv: str, check: bool = True) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert not check or done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
