"""What a machine says against tuning on it. Pure: facts in, checks out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autotuner.discover.clock import Skew
from autotuner.model.facts import Weights
from autotuner.model.host import Host
from autotuner.model.machine import Disk, Machine, Socket
from autotuner.model.recommendation import Check

SHARED_MEMORY_GIB = 1.0
"""What the ranks of one engine exchange through ``/dev/shm``, per GPU, when there are several."""
FILES = 65536
"""Open files that an engine under load may need: sockets, weights, libraries."""
LOCKED_BYTES = 64 << 20
"""Locked memory below which registering buffers for the network between GPUs is known to fail."""
SKEW_S = 2.0
"""A larger difference of clocks confuses whoever reads the logs of both machines side by side."""
SWAP_GIB = 0.25
"""A little in swap is left over from long ago; this much means that memory ran short."""

_NETWORK_DISKS = ("nfs", "cifs", "smb", "fuse", "ceph", "lustre", "gpfs", "beegfs", "9p", "virtiofs", "afs")


def disk_checks(host: Host, machine: Machine) -> tuple[Check, ...]:
    """Room for state and for the engine's caches, and where the weights are read from."""
    wanted = host.limits.disk_free_gib
    state, caches = machine.disks.get("state"), machine.disks.get("caches")
    found: list[Check] = []
    if state is not None:
        found.append(_room("disk", state, wanted, "free some space (engine caches under ~/.cache are a good place to look)"))
    if caches is not None and host.simulate is None and (state is None or caches.mount != state.mount):
        found.append(
            _room("cache-disk", caches, wanted, "engines compile kernels there: free some space, or set XDG_CACHE_HOME in engine.env")
        )
    for role in ("model", "drafter"):
        disk = machine.disks.get(role)
        if disk is not None and disk.kind.startswith(_NETWORK_DISKS):
            detail = f"{disk.path} is on {disk.kind} ({disk.mount}): every launch reads it over the network"
            found.append(Check(name=f"{role}-disk", status="pass", detail=detail))
    return tuple(found)


def _room(name: str, disk: Disk, wanted: float, hint: str) -> Check:
    if disk.free_gib < wanted:
        detail = f"{disk.free_gib:.1f} GiB free at {disk.path} ({disk.mount}), limits.disk_free_gib is {wanted:g}"
        return Check(name=name, status="fail", detail=detail, hint=f"{hint}, or lower limits.disk_free_gib")
    return Check(name=name, status="pass", detail=f"{disk.free_gib:.0f} GiB free at {disk.path}")


def hardware_checks(host: Host, machine: Machine, gpus: int) -> tuple[Check, ...]:
    """Shared memory, limits, governor and swap: what makes an engine slow or lets it fail late. Not asked of simulated hardware."""
    return (*_shared_memory(machine, gpus), *_limits(host, machine, gpus), *_governor(machine), *_swap(machine))


def _shared_memory(machine: Machine, gpus: int) -> Iterable[Check]:
    disk = machine.disks.get("shm")
    if gpus <= 1 or disk is None:
        return
    wanted = SHARED_MEMORY_GIB * gpus
    if disk.free_gib >= wanted:
        yield Check(name="shared-memory", status="pass", detail=f"{disk.free_gib:.0f} GiB free at /dev/shm")
    else:
        detail = f"{disk.free_gib:.2f} GiB free at /dev/shm, {gpus} ranks want about {wanted:g}"
        hint = "start the container with --ipc=host or a larger --shm-size, or mount it larger: mount -o remount,size=SIZE /dev/shm"
        yield Check(name="shared-memory", status="warning", detail=detail, hint=hint)


def _limits(host: Host, machine: Machine, gpus: int) -> Iterable[Check]:
    """Hard limits: an engine raises its soft ones itself."""
    if host.service.manager == "systemd":
        production = next((unit for unit in machine.units if unit.load == "loaded" and unit.limits), None)
        limits: Mapping[str, int | None] = production.limits if production else {}
        where = f" of {production.name}" if production else ""
        hint = "raise {0} of the unit (systemctl edit): its candidates are given the same limits"
        names = {"nofile": "LimitNOFILE=", "memlock": "LimitMEMLOCK="}
        locks_freely = production is not None and production.user in {"", "root", "0"}
    else:
        limits = {name: hard for name, (_, hard) in machine.limits.items()}
        where = f" of user {machine.user}" if machine.user else ""
        hint = "raise {0} in /etc/security/limits.conf (in a container: --ulimit {0})"
        names = {"nofile": "nofile", "memlock": "memlock"}
        locks_freely = machine.uid == 0
    files, locked = limits.get("nofile"), limits.get("memlock")
    if files is not None and files < FILES:
        detail = f"open files{where} are limited to {files}, an engine under load may want {FILES}"
        yield Check(name="limits", status="warning", detail=detail, hint=hint.format(names["nofile"]))
    if locked is not None and locked < LOCKED_BYTES and gpus > 1 and not locks_freely:
        detail = f"locked memory{where} is limited to {locked >> 10} KiB: buffers for the network between GPUs cannot be registered"
        yield Check(name="limits", status="warning", detail=detail, hint=hint.format(names["memlock"]))


def _governor(machine: Machine) -> Iterable[Check]:
    slow = {name: count for name, count in machine.governors.items() if name != "performance"}
    if slow:
        told = ", ".join(f"{name} on {count} of {sum(machine.governors.values())}" for name, count in sorted(slow.items()))
        yield Check(
            name="governor",
            status="warning",
            detail=f"the processors' frequency governor is {told}: scheduling between tokens gets slower",
            hint="cpupower frequency-set -g performance",
        )


def _swap(machine: Machine) -> Iterable[Check]:
    if machine.memory.swap_used > SWAP_GIB:
        detail = f"{machine.memory.swap_used:.1f} of {machine.memory.swap:.1f} GiB of swap are in use"
        hint = "memory ran short before: see who needs it (ps aux --sort -rss), then swapoff -a and swapon -a"
        yield Check(name="swap", status="warning", detail=detail, hint=hint)


def system_checks(host: Host, machine: Machine) -> tuple[Check, ...]:
    """What the service manager needs: systemd as PID 1, and the right to change its units."""
    if host.service.manager != "systemd":
        return ()
    if not machine.booted_by_systemd:
        what = f"systemd {machine.systemd} is installed, but did not boot it" if machine.systemd else "there is no systemd"
        hint = "inside a container write `service: {manager: process}`; else give the document of the machine where the unit runs"
        return (Check(name="systemd", status="fail", detail=f"service.manager is systemd, but {what}", hint=hint),)
    found = [Check(name="systemd", status="pass", detail=f"systemd {machine.systemd}, cgroup v{machine.cgroups or '?'}")]
    if lacks_rights(host, machine):
        detail = f"user {machine.user} may not run the tuner's program as root, and production is a unit of the system"
        hint = f"have an administrator look at and run what `autotuner service {host.name} grant` prints"
        found.append(Check(name="sudo", status="fail", detail=detail, hint=hint))
    return tuple(found)


def lacks_rights(host: Host, machine: Machine) -> bool:
    """Whether units are to be changed by a user who may not."""
    return host.service.manager == "systemd" and machine.uid not in {0, None} and not machine.sudo


def unit_checks(machine: Machine, wanted: Iterable[str]) -> tuple[Check, ...]:
    """Units that the document names and that could not be started, from what systemd says of them."""
    problems = {
        "not-found": ("does not exist", "correct its name in the host document: `systemctl list-unit-files` lists them"),
        "masked": ("is masked", "systemctl unmask it, or name another unit"),
        "bad-setting": ("has a wrong setting", "`systemd-analyze verify` says which"),
        "error": ("cannot be read", "`systemctl status` says why"),
    }
    by_name = {unit.name: unit for unit in machine.units}
    named = [by_name[name] for name in dict.fromkeys(map(_full, wanted)) if name in by_name]
    return tuple(
        Check(name="units", status="fail", detail=f"{unit.name} {problems[unit.load][0]}", hint=problems[unit.load][1])
        for unit in named
        if unit.load in problems
    )


def _full(name: str) -> str:
    return name if "." in name else f"{name}.service"


def clock_check(found: Skew | None) -> tuple[Check, ...]:
    """The host's clock against the controller's."""
    if found is None:
        return ()
    if found.exceeds(SKEW_S):
        way = "ahead of" if found.ahead_s > 0 else "behind"
        detail = f"the host's clock is {abs(found.ahead_s):.1f} s {way} the controller's (±{found.uncertainty_s:.1f} s)"
        hint = "start a time service on both: timedatectl set-ntp true"
        return (Check(name="clock", status="warning", detail=detail, hint=hint),)
    return (Check(name="clock", status="pass", detail=f"within {abs(found.ahead_s) + found.uncertainty_s:.2f} s of the controller's"),)


def weight_checks(what: str, weights: Weights | None) -> tuple[Check, ...]:
    """Damage that would end a launch only after minutes of loading."""
    if weights is None or not weights.problems:
        return ()
    more = f" … and {len(weights.problems) - 3} more" if len(weights.problems) > 3 else ""
    detail = f"{what}: {'; '.join(weights.problems[:3])}{more}"
    return (Check(name=f"{what}-files", status="fail", detail=detail, hint=f"copy the {what} again: these files are not whole"),)


def holder(sockets: Iterable[Socket], port: int) -> str | None:
    """Who listens on ``port``, as far as the kernel tells; ``None`` when nobody does."""
    found = [socket for socket in sockets if socket.port == port]
    if not found:
        return None
    programs = dict.fromkeys(f"{name} (pid {pid})" for socket in found for name, pid in socket.holders)
    units = dict.fromkeys(socket.unit for socket in found if socket.unit)
    users = dict.fromkeys("another user" if socket.uid is None else f"user id {socket.uid}" for socket in found)
    if programs:
        return ", ".join(programs) + (f" of {', '.join(units)}" if units else "")
    return f"a process of {', '.join(units or users)} that this user cannot see"
