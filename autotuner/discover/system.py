"""The operating system: what it is, what it runs in, its units and its listening sockets."""

from __future__ import annotations

import re
from collections.abc import Mapping

from autotuner.model.machine import Socket, Unit

UNIT_FIELDS = "Id,LoadState,ActiveState,UnitFileState,FragmentPath,NeedDaemonReload,User,MainPID,LimitNOFILE,LimitMEMLOCK"
"""What ``parse_units`` reads of ``systemctl show``."""

_SOCKET = re.compile(r"^LISTEN\s+\d+\s+\d+\s+(?P<address>\S+):(?P<port>\d{1,5})\s+\S+(?P<rest>.*)$")
_HOLDER = re.compile(r'\("((?:[^"\\]|\\.)*)",pid=(\d{1,9}),fd=\d+\)')
_UNIT_OF = re.compile(r"/([^/\s]+\.(?:service|scope))(?=/|\s|$)")
_LIMIT_FIELDS = {"LimitNOFILE": "nofile", "LimitMEMLOCK": "memlock"}


def parse_sockets(text: str) -> tuple[Socket, ...]:
    """Listening sockets from the output of ``ss -ltnpe``; lines of another kind are passed over.

    Holders are told for one's own processes only, or to root; user id and control group (newer versions) for all.
    """
    found: list[Socket] = []
    for line in text.splitlines():
        row = _SOCKET.match(line)
        if row is None:
            continue
        uid = re.search(r"\buid:(\d{1,9})\b", row["rest"])
        group = re.search(r"\bcgroup:(\S+)", row["rest"])
        found.append(
            Socket(
                address=row["address"].strip("[]"),
                port=int(row["port"]),
                holders=tuple((name, int(pid)) for name, pid in _HOLDER.findall(row["rest"])),
                uid=int(uid[1]) if uid else (0 if " ino:" in row["rest"] else None),  # root's is left out of the details
                unit=unit_of(group[1]) if group else None,
            )
        )
    return tuple(found)


def unit_of(cgroup: str) -> str | None:
    """The innermost systemd unit in a control group's path, or in the text of ``/proc/PID/cgroup``.

    The manager of a person's own session counts only where nothing stands below it.
    """
    found: list[str] = _UNIT_OF.findall(cgroup)
    own = [unit for unit in found if not unit.startswith("user@")] or found
    return own[-1] if own else None


def parse_process_units(text: str) -> dict[int, str | None]:
    """Process id → systemd unit, from lines of a pid and the text of its ``/proc/PID/cgroup`` with blanks for line ends."""
    found: dict[int, str | None] = {}
    for line in text.splitlines():
        pid, blank, cgroup = line.partition(" ")
        if blank and cgroup.strip() and re.fullmatch(r"[0-9]{1,9}", pid):
            found[int(pid)] = unit_of(cgroup.rstrip())
    return found


def parse_units(text: str) -> tuple[Unit, ...]:
    """Units from the output of ``systemctl show``, in the order in which they were asked for; a block without a name is left out."""
    found: list[Unit] = []
    for block in re.split(r"\n\s*\n", text):
        said = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if said.get("Id"):
            found.append(_unit(said))
    return tuple(found)


def _unit(said: Mapping[str, str]) -> Unit:
    pid = _integer(said.get("MainPID", ""))
    return Unit(
        name=said["Id"],
        load=said.get("LoadState", ""),
        active=said.get("ActiveState", ""),
        enablement=said.get("UnitFileState", ""),
        fragment=said.get("FragmentPath", ""),
        user=said.get("User", ""),
        main_pid=pid or None,
        needs_reload=said.get("NeedDaemonReload") == "yes",
        limits={name: _limit(said[key]) for key, name in _LIMIT_FIELDS.items() if _limit(said.get(key, "")) != 0},
    )


def _limit(word: str) -> int | None:
    """``None`` is unlimited, 0 what is not told."""
    return None if word in {"infinity", str(2**64 - 1)} else _integer(word) or 0


def parse_release(text: str) -> str:
    """The name of the distribution, from ``/etc/os-release``; empty when it does not say."""
    found = re.search(r"^PRETTY_NAME=(.*)$", text, re.MULTILINE) or re.search(r"^NAME=(.*)$", text, re.MULTILINE)
    return found[1].strip().strip("\"'") if found else ""


def parse_systemd(text: str) -> int | None:
    """Version from the output of ``systemctl --version``; ``None`` where there is none."""
    found = re.match(r"systemd (\d{1,6})\b", text)
    return int(found[1]) if found else None


def parse_cgroups(text: str) -> int | None:
    """Version of the control groups, from the kind of file system at their root; the hybrid form counts as 1."""
    return {"cgroup2fs": 2, "tmpfs": 1}.get(text.strip())


def _integer(word: str) -> int | None:
    return int(word) if re.fullmatch(r"[0-9]{1,19}", word) else None
