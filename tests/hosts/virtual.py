"""A test host that is a machine of its own: its own kernel with cgroups v2, its own page cache, its own clock. Slow, by hand, root only.

QEMU emulates the processor. Killing it is a power cut: what was not flushed to the disk is gone. The tests' own way in is an sshd over
a second network link, which no fault touches.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tests.hosts.base import STATE, Base
from tests.hosts.machine import NETWORK, Machine, until
from tests.hosts.production import MODEL
from tests.hosts.virtual_image import Image

MEMORY_MB = 1024
BOOT_PATIENCE_S = 180.0
OWN_WAY_IN = 5
"""Added to the number of the host: the number of the network of the tests' own way in."""
WRITE_BACK_S = 300
"""How long the file system may keep what nobody flushed; a short time would save by chance what was never made durable."""
_ENVIRONMENT = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class VirtualMachine(Machine):
    """One virtual host. ``number`` and the fifth after it decide its addresses; see ``Machine`` for everything else."""

    inner_link = "eth0"
    slice = "/sys/fs/cgroup/system.slice"
    pace = 6.0

    def __init__(self, base: Base, name: str, number: int) -> None:
        super().__init__(base, name, number)
        self.image = Image(base, STATE / "virtual")
        self.disk = self.folder / "disk.qcow2"
        self.link = f"vm-{name}"
        self.own_link = f"vo-{name}"
        self.own_number = number + OWN_WAY_IN
        self.own_address = f"{NETWORK}.{self.own_number}.2"
        self._master: subprocess.Popen[bytes] | None = None

    # --- power -----------------------------------------------------------------------------------------------------------------

    def up(self, *, binds: Sequence[str] = ()) -> Self:
        """Boot it: with the disk as it was when it has one, else fresh."""
        assert self.process is None, f"{self.name} is up"
        assert not binds, "a virtual host has no folders of this machine"
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.disk.exists():
            self.image.ensure()
            _call("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(self.image.disk), str(self.disk))
        public = self.image.host_key.with_suffix(".pub").read_text().split()
        self.known_hosts.write_text("".join(f"{at} {public[0]} {public[1]}\n" for at in (self.address, self.own_address)))
        self._make_links()
        boot = [sys.executable, "-S", "-E", str(Path(__file__).with_name("boot.py")), "--", *self._qemu()]
        with (self.folder / "console").open("ab") as console:
            self.process = subprocess.Popen(boot, stdin=subprocess.DEVNULL, stdout=console, stderr=console)
        (self.folder / "pid").write_text(str(self.process.pid))
        until(self._own_way_in, f"sshd of {self.name}: see {self.folder}/console", patience_s=BOOT_PATIENCE_S)
        until(self._booted, f"the boot of {self.name}: see {self.folder}/console", patience_s=BOOT_PATIENCE_S)
        until(self.reachable, f"sshd of {self.name}")
        return self

    def kill(self) -> None:
        """Cut its power: memory and page cache are gone, the disk holds what was flushed. Nothing answers any more, not even with no."""
        if self.process:
            self.process.kill()
            self.process.wait()
        if self._master:
            self._master.kill()
            self._master.wait()
        self.process = self._master = None
        self._control.unlink(missing_ok=True)

    def _own_way_in(self) -> bool:
        """Whether the tests' own connection is there; it is made when the host says hello."""
        assert self.process is not None
        assert self.process.poll() is None, f"{self.name}: {(self.folder / 'console').read_text(errors='replace')[-2000:]}"
        if self._master is not None and self._master.poll() is None:
            return self._control.exists()
        with contextlib.suppress(OSError), socket.create_connection((self.own_address, 22), timeout=1) as link:
            link.settimeout(5)
            if link.recv(4) == b"SSH-":
                argv = [
                    "ssh",
                    *self._options(),
                    "-o",
                    "ControlMaster=yes",
                    "-o",
                    "ServerAliveInterval=30",
                    "-N",
                    f"root@{self.own_address}",
                ]
                with (self.folder / "console").open("ab") as said:
                    self._master = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        time.sleep(0.2)
        return False

    def _booted(self) -> bool:
        time.sleep(0.3)
        return super()._booted()

    # --- the ways in -----------------------------------------------------------------------------------------------------------

    def command(self, argv: Sequence[str]) -> list[str]:
        """Command on this machine that runs one on the host."""
        return ["ssh", *self._options(), f"root@{self.own_address}", f"{_ENVIRONMENT} {shlex.join(argv)}"]

    @property
    def clock_offset_s(self) -> float:  # type: ignore[override]
        """What to add to the host's time since its start to get this machine's, within the time that asking takes."""
        begin = time.clock_gettime(time.CLOCK_BOOTTIME)
        there = float(self.run(["cat", "/proc/uptime"]).stdout.split()[0])
        return (begin + time.clock_gettime(time.CLOCK_BOOTTIME)) / 2 - there

    def jump(self, seconds: float) -> None:
        """Move the host's wall clock."""
        self.run(["date", "-s", f"@{time.time() + seconds:.0f}"])

    def production(self, unit: str = "prod.service", **more: Any) -> list[str]:
        """Production that starts in a moment: the simulated engine takes a long time to be loaded here."""
        more.pop("simulate", None)
        self.run(["systemctl", "stop", unit], check=False)  # on a host that was kept: what runs must be younger than its unit's file
        return self.light_production(unit, flags=("--model-path", MODEL, "--context-length", "16384", "--tp-size", "8"), **more)

    # --- the network -----------------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        self.run(["ip", "link", "set", self.inner_link, "down"])

    def join(self) -> None:
        self.run(["ip", "link", "set", self.inner_link, "up"])

    def shape(self, *rule: str, direction: str = "both") -> None:
        """Treat packets ``in`` to the host, ``out`` of it or ``both`` as netem is told: ``loss 10% delay 100ms rate 256kbit``."""
        if direction in {"out", "both"}:
            self.run(["tc", "qdisc", "replace", "dev", self.inner_link, "root", "netem", *rule])
        if direction in {"in", "both"}:
            self.run(["ip", "link", "set", "ifb0", "up"])
            self.run(["tc", "qdisc", "replace", "dev", "ifb0", "root", "netem", *rule])
            self.run(["tc", "qdisc", "replace", "dev", self.inner_link, "ingress"])
            redirect = ["matchall", "action", "mirred", "egress", "redirect", "dev", "ifb0"]
            self.run(["tc", "filter", "replace", "dev", self.inner_link, "ingress", "pref", "1", "handle", "1", *redirect])

    def drop(self, *, direction: str = "both") -> None:
        self.shape("loss", "100%", direction=direction)

    def lose(self, share: float) -> None:
        self.shape("loss", f"{share:%}")

    def undrop(self) -> None:
        self.widen()

    def narrow(self, rate: str = "256kbit") -> None:
        self.shape("rate", rate)

    def widen(self) -> None:
        for side in ("root", "ingress"):
            self.run(["tc", "qdisc", "del", "dev", self.inner_link, side], check=False)

    # --- inside ----------------------------------------------------------------------------------------------------------------

    def _enter(
        self, argv: Sequence[str], *_: str, check: bool = True, stdin: str = "", timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(argv), input=stdin, capture_output=True, text=True, errors="replace", timeout=timeout_s * self.pace, check=False
        )
        assert not check or done.returncode == 0, f"{self.name}: {' '.join(argv)}: {done.returncode} {done.stderr}"
        return done

    def run(self, argv: Sequence[str], *, check: bool = True, stdin: str = "", timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        return self._enter(argv, check=check, stdin=stdin, timeout_s=timeout_s)

    @property
    def _control(self) -> Path:
        return self.folder / "way-in"

    def _options(self) -> list[str]:
        known = {
            "BatchMode": "yes",
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": str(self.known_hosts),
            "IdentityFile": str(self.base.key),
            "IdentitiesOnly": "yes",
            "ControlPath": str(self._control),
            "LogLevel": "ERROR",
        }
        return ["-F", "none", *(word for name, value in known.items() for word in ("-o", f"{name}={value}"))]

    def _qemu(self) -> list[str]:
        words = "console=ttyS0 quiet panic=-1 net.ifnames=0 systemd.getty_auto=0 systemd.show_status=0 mitigations=off random.trust_cpu=on"
        words += f" at.eth0={self.address}/24 at.eth1={self.own_address}/24 at.disk=commit={WRITE_BACK_S}"
        argv = ["qemu-system-x86_64", "-name", self.name, "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "qemu64", "-smp", "2"]
        argv += ["-m", str(MEMORY_MB), "-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot", "-rtc", "base=utc,clock=host"]
        argv += ["-kernel", str(self.image.kernel), "-initrd", str(self.image.initial), "-append", words]
        argv += ["-drive", f"file={self.disk},if=virtio,format=qcow2,cache=writeback", "-device", "virtio-rng-pci"]
        for index, link in enumerate((self.link, self.own_link)):
            mac = f"52:54:00:77:{self.number:02x}:{index:02x}"
            argv += ["-netdev", f"tap,id=n{index},ifname={link},script=no,downscript=no"]
            argv += ["-device", f"virtio-net-pci,netdev=n{index},mac={mac},romfile="]
        return argv

    # --- what is left ----------------------------------------------------------------------------------------------------------

    def _make_links(self) -> None:
        for link, number in ((self.link, self.number), (self.own_link, self.own_number)):
            if not Path(f"/sys/class/net/{link}").exists():
                _call("ip", "tuntap", "add", link, "mode", "tap")
            _call("ip", "route", "replace", "unreachable", f"{NETWORK}.{number}.0/24", "metric", "4000")
            _call("ip", "addr", "replace", f"{NETWORK}.{number}.1/24", "dev", link)
            _call("ip", "link", "set", link, "up")

    def clear_leftovers(self) -> None:
        """Remove what a killed process of tests left of this host."""
        pid = self.folder / "pid"
        left = int(pid.read_text() or 0) if pid.exists() else 0
        with contextlib.suppress(OSError):
            if left and str(self.disk).encode() in Path(f"/proc/{left}/cmdline").read_bytes():
                os.kill(left, signal.SIGKILL)
        self._clear()

    def _clear(self) -> None:
        for link, number in ((self.link, self.number), (self.own_link, self.own_number)):
            subprocess.run(["ip", "link", "del", link], capture_output=True, check=False)
            unreachable = ["ip", "route", "del", "unreachable", f"{NETWORK}.{number}.0/24", "metric", "4000"]
            subprocess.run(unreachable, capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def _call(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
