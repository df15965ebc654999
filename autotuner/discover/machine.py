"""Processors, memory and disks."""

from __future__ import annotations

import re
from dataclasses import dataclass

_KIB_PER_GIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A mounted file system."""

    mount: str
    size_gib: float
    free_gib: float
    """What an ordinary user may still write."""


def disk_command(*paths: str) -> tuple[str, ...]:
    """The command that ``parse_disks`` reads; one line a path, in order."""
    return ("df", "-P", "-k", "--", *paths)


def parse_disks(text: str) -> tuple[Disk, ...]:
    """File systems from the output of ``df -P -k``."""
    found: list[Disk] = []
    for line in text.splitlines()[1:]:
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[1].isdecimal() and fields[3].isdecimal():
            found.append(Disk(mount=fields[5], size_gib=int(fields[1]) / _KIB_PER_GIB, free_gib=int(fields[3]) / _KIB_PER_GIB))
    return tuple(found)


def parse_cpus(text: str) -> int:
    """Processors from ``/proc/cpuinfo``; 0 when there is none to be seen."""
    return len(re.findall(r"^processor\s*:", text, re.MULTILINE))


def parse_memory(text: str) -> float:
    """Installed memory in GiB from ``/proc/meminfo``; 0 when it does not say."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", text, re.MULTILINE)
    return round(int(found[1]) / _KIB_PER_GIB, 2) if found else 0.0
