"""What virtual hosts start from: Debian's own kernel, an initial file system that loads its drivers, and a disk made of the base system."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import uuid
from pathlib import Path

from tests.hosts.base import REPOSITORY, Base, locked

PROGRAMS = ("qemu-system-x86_64", "qemu-img", "busybox", "cpio", "mkfs.ext4", "dpkg-deb", "apt-get", "ssh", "ssh-keygen", "ip")
PACKAGES = "qemu-system-x86 qemu-utils busybox-static cpio e2fsprogs openssh-client iproute2"
KERNEL = "linux-image-cloud-amd64"
DISK = "6G"
OLD_S = 7200.0
"""Disks of trees that have changed since are kept for as long as a host may still run on them."""
DRIVERS = (
    *("virtio_pci", "virtio_blk", "virtio_net", "virtio-rng"),
    *("sch_netem", "ifb", "sch_ingress", "cls_matchall", "act_mirred"),
)
_MODULE_FOLDERS = ("kernel/drivers", "kernel/net", "kernel/lib", "kernel/crypto", "kernel/arch")
_LEFT_OUT = ("site-packages", "test", "config-*", "__pycache__", "idlelib", "ensurepip", "tkinter", "lib2to3")
_INIT = """#!/bin/busybox sh
# The addresses and the disk's option come from the kernel's command line.
/bin/busybox mkdir -p /proc /sys /dev /root
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs dev /dev
for module in $(/bin/busybox cat /modules/order); do /bin/busybox insmod "/modules/$module"; done
for word in $(/bin/busybox cat /proc/cmdline); do
  case "$word" in
    at.eth*) link=${word#at.}; /bin/busybox ip addr add "${link#*=}" dev "${link%%=*}"; /bin/busybox ip link set "${link%%=*}" up ;;
    at.disk=*) option=${word#at.disk=} ;;
  esac
done
/bin/busybox ip link set lo up
/bin/busybox mount -t ext4 -o "rw,$option" /dev/vda /root || exec /bin/busybox sh
/bin/busybox umount /sys /proc
/bin/busybox mount --move /dev /root/dev
exec /bin/busybox switch_root /root /lib/systemd/systemd
"""


def missing() -> str | None:
    """Why no virtual host can run here; ``None`` when one can."""
    if os.geteuid() != 0:
        return "virtual hosts need root"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"virtual hosts need {', '.join(absent)} (Debian: {PACKAGES})" if absent else None


class Image:
    """Kernel, initial file system and disk, made once below ``folder``; a changed source tree has a disk of its own."""

    def __init__(self, base: Base, folder: Path) -> None:
        self.base = base
        self.folder = folder
        self.kernel = folder / "vmlinuz"
        self.initial = folder / "initrd"
        self.host_key = folder / "ssh_host_ed25519_key"
        self.disk = folder / f"disk-{max(path.stat().st_mtime_ns for path in _sources())}.raw"

    def ensure(self) -> Image:
        """Make what is not there, about half a minute. Raises ``RuntimeError`` with the reason when it cannot be made."""
        if reason := missing():
            raise RuntimeError(reason)
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / "lock"):
            if not (self.kernel.exists() and self.initial.exists()):
                self._fetch_kernel()
            if not self.host_key.exists():
                _call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "virtual", "-f", str(self.host_key))
            if not self.disk.exists():
                self._make_disk()
        return self

    def _fetch_kernel(self) -> None:
        depends = subprocess.run(["apt-cache", "depends", KERNEL], capture_output=True, text=True, check=True).stdout
        found = re.search(r"Depends: (linux-image-\S+)", depends)
        if found is None:
            raise RuntimeError(f"{KERNEL} is not known to apt\nhint: apt-get update")
        package = self.folder / "kernel"
        shutil.rmtree(package, ignore_errors=True)
        package.mkdir()
        _call("apt-get", "download", found.group(1), "-o", "APT::Sandbox::User=root", cwd=package)
        _call("dpkg-deb", "-x", str(next(package.glob("*.deb"))), str(package / "root"))
        modules = next((package / "root/lib/modules").iterdir())
        self._make_initial(modules)
        shutil.copyfile(next((package / "root/boot").glob("vmlinuz-*")), self.kernel)
        shutil.rmtree(package)

    def _make_initial(self, modules: Path) -> None:
        root = self.folder / "initial"
        shutil.rmtree(root, ignore_errors=True)
        for name in ("bin", "modules"):
            (root / name).mkdir(parents=True)
        shutil.copy(shutil.which("busybox") or "", root / "bin/busybox")
        order = _in_order(modules)
        for module in order:
            shutil.copyfile(module, root / "modules" / module.name)
        (root / "modules/order").write_text("\n".join(module.name for module in order))
        (root / "init").write_text(_INIT)
        (root / "init").chmod(0o755)
        names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
        packed = subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], input=names.encode(), cwd=root, capture_output=True, check=True)
        self.initial.write_bytes(packed.stdout)
        shutil.rmtree(root)

    def _make_disk(self) -> None:
        root = self.folder / "root"
        shutil.rmtree(root, ignore_errors=True)
        _call("cp", "-a", "--reflink=auto", str(self.base.root), str(root))
        for key in (self.host_key, self.host_key.with_suffix(".pub")):
            shutil.copy(key, root / "etc/ssh" / key.name)
        (root / "etc/hostname").write_text("virtual\n")
        (root / "etc/fstab").write_text("")
        (root / "etc/machine-id").write_text(f"{uuid.uuid4().hex}\n")
        # Nothing here makes device units, for which these would wait.
        for unit in ("serial-getty@ttyS0.service", "getty@tty1.service", "systemd-networkd-wait-online.service"):
            link = root / "etc/systemd/system" / unit
            link.unlink(missing_ok=True)
            link.symlink_to("/dev/null")
        # A tree below /tmp would be cleared away as the host boots.
        (root / "etc/tmpfiles.d/tmp.conf").write_text("q /tmp 1777 root root -\n")
        _copy_interpreter(root)
        for folder in ("autotuner", "tests/hosts", "tests/data/deploy"):
            target = root / str(REPOSITORY)[1:] / folder
            shutil.copytree(REPOSITORY / folder, target, symlinks=True, dirs_exist_ok=True)
        for old in self.folder.glob("disk-*.raw"):
            if old.stat().st_mtime < time.time() - OLD_S:
                old.unlink()
        made = self.folder / "made"
        made.unlink(missing_ok=True)
        _call("mkfs.ext4", "-q", "-F", "-d", str(root), str(made), DISK)
        made.rename(self.disk)
        shutil.rmtree(root)


def _copy_interpreter(root: Path) -> None:
    """The interpreter of the tests and its environment at the same paths, without other packages: the simulated engine needs none."""
    version = f"python{sysconfig.get_python_version()}"
    if not Path(sys.base_prefix).is_relative_to("/usr"):
        home = root / str(Path(sys.base_prefix).resolve())[1:]
        ignore = shutil.ignore_patterns(*_LEFT_OUT)
        shutil.copytree(Path(sys.base_prefix) / "bin", home / "bin", symlinks=True)
        shutil.copytree(Path(sys.base_prefix) / f"lib/{version}", home / f"lib/{version}", symlinks=True, ignore=ignore)
        for library in (Path(sys.base_prefix) / "lib").glob("libpython*"):
            shutil.copy(library, home / "lib" / library.name, follow_symlinks=False)
    environment = root / sys.prefix[1:]
    (environment / "bin").mkdir(parents=True)
    for path in (Path(sys.prefix) / "bin").glob("python*"):
        shutil.copy(path, environment / "bin" / path.name, follow_symlinks=False)
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", environment / "pyvenv.cfg")
    packages = environment / f"lib/{version}/site-packages"
    packages.mkdir(parents=True)
    (packages / "here.pth").write_text(f"{REPOSITORY}\n")
    compiled = [str(home) for home in (root / str(Path(sys.base_prefix).resolve())[1:] / f"lib/{version}",) if home.exists()]
    _call(sys.executable, "-m", "compileall", "-q", "-s", str(root), "--invalidation-mode", "unchecked-hash", *compiled, check=False)


def _in_order(modules: Path) -> list[Path]:
    """The drivers and what they need, each after what it needs."""
    known = {_plain(path.stem): path for folder in _MODULE_FOLDERS for path in (modules / folder).rglob("*.ko")}
    order: list[Path] = []

    def add(name: str) -> None:
        path = known.get(_plain(name))
        if path is None or path in order:
            return
        needed = re.search(rb"\0depends=([^\0]*)\0", path.read_bytes())
        for other in needed.group(1).decode().split(",") if needed else []:
            add(other) if other else None
        order.append(path)

    for driver in DRIVERS:
        assert _plain(driver) in known, f"no module {driver} in {modules}"
        add(driver)
    return order


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _sources() -> list[Path]:
    """What hosts run of this tree; a change elsewhere needs no new disk."""
    server = [REPOSITORY / "tests/hosts/light_server.py", REPOSITORY / "tests/hosts/matrix/observer.py"]
    return [*server, *(REPOSITORY / "autotuner/engines").rglob("*.py")]


def _call(*argv: str, check: bool = True, cwd: Path | None = None) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, cwd=cwd)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr[-2000:]}")
