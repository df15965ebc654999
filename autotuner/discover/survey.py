"""One look over a host: a constant script that prints the output of many commands in labelled sections, run once.

Over SSH every command costs a round trip, so what does not depend on an earlier answer is asked together. Each section is read by the pure
parser of its subject. Nothing on the host is changed.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from autotuner.discover import gpus, machine, system, toolkit, topology
from autotuner.model.host import Host, ProductionUnit
from autotuner.model.machine import Disk, Machine
from autotuner.services.grant import PROGRAM
from autotuner.services.hostside import STATE, SYSTEM_STATE
from autotuner.transports.base import Transport

TIMEOUT_S = 180.0
"""Eight GPUs without persistence mode take about three seconds for every question."""
_MARK = "\x1e"
_SCRIPT = rf"""
export LC_ALL=C
gpus=$1 mig=$2 sudo=$3 cuda=$4 path=$5
shift 5
begin() {{ printf '\036%s\n' "$1"; }}
end() {{ rc=$?; printf '\036=%s\n' "$rc"; return "$rc"; }}
ask() {{ begin "$1"; shift; timeout -k 2 20 "$@" 2>&1; end; }}
ask user id -un
ask uid id -u
ask kernel uname -r
ask release cat /etc/os-release
ask nproc nproc
ask lscpu lscpu -J
ask meminfo cat /proc/meminfo
ask limits cat /proc/self/limits
ask cgroups stat -fc %T /sys/fs/cgroup
ask sockets ss -ltnpe
ask systemd systemctl --version
begin booted; [ -d /run/systemd/system ]; end
begin governors; cat /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor 2>/dev/null; end
begin virtualization
if [ -e /.dockerenv ]; then echo docker; elif [ -e /run/.containerenv ]; then echo podman; else systemd-detect-virt 2>/dev/null; fi
end
[ -z "$sudo" ] || ask sudo sudo -n -l -- "$sudo"
while [ "$#" -gt 0 ] && [ "$1" != -- ]; do
  role=$1 folder=$2
  shift 2
  [ -n "$folder" ] || folder=${{XDG_CACHE_HOME:-${{HOME:-/root}}/.cache}}
  begin "disk-$role"; printf '%s\n' "$folder"
  while [ ! -e "$folder" ]; do folder=$(dirname -- "$folder"); done
  timeout -k 2 20 df -PkT -- "$folder" 2>&1; end
done
shift
[ "$#" -eq 0 ] || ask units systemctl show -p {system.UNIT_FIELDS} -- "$@"
[ "$gpus" = yes ] || exit 0
begin toolkit
for home in "$cuda" "${{CUDA_HOME:-}}" "$(PATH=${{path:-$PATH}}; command -v nvcc | sed 's,/bin/nvcc$,,')" /usr/local/cuda; do
  [ -n "$home" ] || continue
  if [ -x "$home/bin/nvcc" ]; then printf 'where %s\n' "$home"; timeout -k 2 20 "$home/bin/nvcc" --version 2>&1; break; fi
  if [ -r "$home/version.json" ]; then printf 'where %s\n' "$home"; cat "$home/version.json"; break; fi
done
end
ask gpus {shlex.join(gpus.FACTS_COMMAND)} || exit 0
ask states {shlex.join(gpus.STATES_COMMAND)}
begin reasons
timeout -k 2 20 {shlex.join(gpus.REASONS_COMMAND)} 2>&1 || timeout -k 2 20 {shlex.join(gpus.OLD_REASONS_COMMAND)} 2>&1
end
ask topology {shlex.join(topology.COMMAND)}
ask smi nvidia-smi
[ "$mig" = no ] || ask mig {shlex.join(gpus.LIST_COMMAND)}
apps=$(timeout -k 2 20 {shlex.join(gpus.PROCESSES_COMMAND)} 2>&1)
begin processes; printf '%s\n' "$apps"; end
begin process-units
printf '%s\n' "$apps" | while IFS=', ' read -r pid _; do
  case $pid in '' | *[!0-9]*) continue ;; esac
  [ -r "/proc/$pid/cgroup" ] && printf '%s %s\n' "$pid" "$(tr '\n' ' ' <"/proc/$pid/cgroup")"
done
end
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What one command printed, and how it ended."""

    text: str = ""
    returncode: int | None = None
    """``None`` when it was not asked, or its end was not seen."""

    @property
    def ok(self) -> bool:
        """Whether it ended with 0."""
        return self.returncode == 0


def command(host: Host) -> tuple[str, ...]:
    """The command that ``parse_sections`` reads."""
    env, real = host.engine.env, host.simulate is None
    units = host.service.manager == "systemd"
    state = SYSTEM_STATE if units else posixpath.dirname(STATE)
    folders = {"state": state, "caches": _caches(env), "shm": "/dev/shm"}  # noqa: S108 - asked about, not written
    if real:
        folders |= {"model": host.model.path} | ({"drafter": host.model.drafter} if host.model.drafter else {})
    words = [word for role, folder in folders.items() for word in (role, folder)]
    flags = ("yes" if real else "no", "yes" if gpus.names_mig(env.get("CUDA_VISIBLE_DEVICES")) else "no")
    sudo = PROGRAM if units else ""
    return ("sh", "-c", _SCRIPT, "survey", *flags, sudo, env.get("CUDA_HOME", ""), env.get("PATH", ""), *words, "--", *named_units(host))


def named_units(host: Host) -> tuple[str, ...]:
    """The systemd units that the host document names; none where production is not a unit."""
    if host.service.manager != "systemd":
        return ()
    production = host.service.production
    return (*((production.unit,) if isinstance(production, ProductionUnit) else ()), *host.service.conflicts)


def _caches(env: Mapping[str, str]) -> str:
    """Where the engine keeps what it compiled; empty for the default of the user who starts it."""
    home = env.get("HOME")
    return env.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")


def look_over(host: Host, transport: Transport) -> dict[str, Section]:
    """Section by name. Raises ``TransportError`` when the host did not answer."""
    return parse_sections(transport.run(command(host), timeout_s=TIMEOUT_S, again=True).stdout)


def parse_sections(text: str) -> dict[str, Section]:
    """Section by name; one that was cut off has no return code. A section that appears twice counts as its last."""
    found: dict[str, Section] = {}
    name, body = "", ""
    for piece in text.split(_MARK)[1:]:
        first, _, rest = piece.partition("\n")
        if not first.startswith("="):
            name, body = first, rest
            found[name] = Section(text=body)
        elif name:
            code = first[1:]
            found[name] = Section(text=body, returncode=int(code) if re.fullmatch(r"[0-9]{1,3}", code) else None)
            name = ""
    return found


def machine_of(sections: Mapping[str, Section]) -> Machine:
    """The machine that a survey describes. Never raises: what is not understood is empty."""

    def text(name: str) -> str:
        return sections.get(name, Section()).text

    processors = machine.parse_processors(text("lscpu"))
    uid = text("uid").strip()
    return Machine(
        user=text("user").strip(),
        uid=int(uid) if re.fullmatch(r"[0-9]{1,10}", uid) else None,
        kernel=text("kernel").strip(),
        os=system.parse_release(text("release")),
        virtualization=text("virtualization").strip(),
        systemd=system.parse_systemd(text("systemd")),
        booted_by_systemd=sections.get("booted", Section()).ok,
        cgroups=system.parse_cgroups(text("cgroups")),
        processors=processors,
        governors=machine.parse_governors(text("governors")),
        memory=machine.parse_memory(text("meminfo")),
        disks=_disks(sections),
        limits=machine.parse_limits(text("limits")),
        sudo=sections["sudo"].ok if "sudo" in sections else None,
        sockets=system.parse_sockets(text("sockets")),
        units=system.parse_units(text("units")),
        driver_cuda=toolkit.parse_driver_cuda(text("smi")),
        toolkit=toolkit.parse_toolkit(text("toolkit")),
        gpus=gpus.parse_states(text("states")),
        clock_reasons=gpus.parse_reasons(text("reasons")),
        links=topology.parse_matrix(text("topology")),
        affinities=topology.parse_affinities(text("topology")),
        processes=gpus.parse_processes(text("processes")),
        process_units=system.parse_process_units(text("process-units")),
    )


def _disks(sections: Mapping[str, Section]) -> dict[str, Disk]:
    found: dict[str, Disk] = {}
    for name, section in sections.items():
        if name.startswith("disk-"):
            path, _, rest = section.text.partition("\n")
            disk = machine.parse_disk(rest, path)
            if disk is not None:
                found[name.removeprefix("disk-")] = disk
    return found


def processor_count(sections: Mapping[str, Section], found: Machine) -> int:
    """Processors that this user's programs may use, which a container may hold below those of the machine."""
    usable = sections.get("nproc", Section()).text.strip()
    return int(usable) if re.fullmatch(r"[0-9]{1,6}", usable) else found.processors.count
