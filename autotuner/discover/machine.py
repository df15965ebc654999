"""Processors, memory and disks."""

from __future__ import annotations

import re

_KIB_PER_GIB = 1 << 20


def disk_command(path: str) -> tuple[str, ...]:
    """The command that ``parse_free`` reads."""
    return ("df", "-P", "-k", "--", path)


def parse_free(text: str) -> float | None:
    """What an ordinary user may still write, in GiB, from the output of ``df -P -k``."""
    for line in text.splitlines()[1:]:
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[3].isdecimal():
            return int(fields[3]) / _KIB_PER_GIB
    return None


def parse_cpus(text: str) -> int:
    """Processors from ``/proc/cpuinfo``; 0 when there is none to be seen."""
    return len(re.findall(r"^processor\s*:", text, re.MULTILINE))


def parse_memory(text: str) -> float:
    """Installed memory in GiB from ``/proc/meminfo``; 0 when it does not say."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", text, re.MULTILINE)
    return round(int(found[1]) / _KIB_PER_GIB, 2) if found else 0.0
