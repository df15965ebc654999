"""The system that every test host starts from, made once: a small Debian with systemd, sshd and what a serving host has."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STATE = Path(os.environ.get("AUTOTUNER_TEST_HOSTS", "/var/lib/autotuner-test-hosts"))
"""Everything of test hosts is kept here. Read when the module is loaded: the tests' own environment is cleaned later."""
REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = "systemd,systemd-sysv,dbus,openssh-server,python3,iproute2,procps,curl,sudo,iptables,nftables,ca-certificates"
VERSION = "1"
"""Raise it when what the base holds changes; an older one is made anew."""
DEBIAN = "debootstrap systemd-container openssh-client iproute2 iptables e2fsprogs util-linux"
PROGRAMS = ("debootstrap", "chattr", "systemd-nspawn", "nsenter", "ssh-keygen", "ip", "iptables", "tc", "mount", "umount")


def missing() -> str | None:
    """Why no host can be booted here; ``None`` when one can."""
    if os.geteuid() != 0:
        return "booting hosts needs root"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"booting hosts needs {', '.join(absent)} (Debian: {DEBIAN})"
    return None


class Base:
    """The base system and the key that opens every host made from it."""

    def __init__(self, state: Path = STATE) -> None:
        self.state = state
        self.root = state / "base"
        self.key = state / "key"

    def ensure(self) -> Base:
        """Make it unless it is there, about a minute. Raises ``RuntimeError`` with the reason when it cannot be made."""
        if reason := missing():
            raise RuntimeError(reason)
        self.state.mkdir(parents=True, exist_ok=True)
        with locked(self.state / "base.lock"):
            done = self.root / ".done"
            if not (done.exists() and done.read_text() == VERSION and self.key.exists()):
                self._make()
                done.write_text(VERSION)
        return self

    def _make(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        for path in (self.key, self.key.with_suffix(".pub")):
            path.unlink(missing_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test hosts", "-f", str(self.key)], check=True)
        argv = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", _suite(), str(self.root), _mirror()]
        log = self.state / "debootstrap.log"
        with log.open("wb") as out:
            made = subprocess.run(argv, stdout=out, stderr=out, stdin=subprocess.DEVNULL, check=False)
        if made.returncode != 0:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
            raise RuntimeError(f"{' '.join(argv)} failed:\n{tail}\nhint: see {log} and {self.root}/debootstrap/debootstrap.log")
        self._furnish()

    def _furnish(self) -> None:
        authorized = self.root / "root/.ssh/authorized_keys"
        authorized.parent.mkdir(mode=0o700, exist_ok=True)
        shutil.copyfile(self.key.with_suffix(".pub"), authorized)
        authorized.chmod(0o600)
        (self.root / "root").chmod(0o711)  # an interpreter that was installed below /root is there for other users, too
        (self.root / "var/log/journal").mkdir(exist_ok=True)
        (self.root / "etc/machine-id").write_text("")
        for key in (self.root / "etc/ssh").glob("ssh_host_*"):  # each host has a key of its own
            key.unlink()
        for timer in ("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "fstrim.timer"):
            link = self.root / "etc/systemd/system" / timer
            link.unlink(missing_ok=True)
            link.symlink_to("/dev/null")


def mounts() -> list[str]:
    """The source tree, its virtual environment and that one's interpreter, read-only at the same paths: an engine can run on the host."""
    folders = {REPOSITORY, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    outside = [folder for folder in folders if not folder.is_relative_to("/usr")]
    tops = [folder for folder in outside if not any(folder != other and folder.is_relative_to(other) for other in outside)]
    return [f"--bind-ro={folder}" for folder in sorted(tops)]


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock between processes; without ``wait`` it may not be had, and ``False`` is handed out."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def _suite() -> str:
    """This machine's own release: the interpreter that the hosts share with it needs its libraries."""
    found = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE)
    return found.group(1) if found else "bookworm"


def _mirror() -> str:
    """This machine's own Debian mirror."""
    lists = [*Path("/etc/apt/sources.list.d").glob("*"), Path("/etc/apt/sources.list")]
    for text in (path.read_text(errors="replace") for path in lists if path.is_file()):
        for address in re.findall(r"^(?:URIs:|deb(?:\s+\[[^\]]*\])?)\s+(\S+/debian/?)(?:\s|$)", text, re.MULTILINE):
            return str(address)
    return "http://deb.debian.org/debian"
