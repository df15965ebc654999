"""A filter of system calls for the sandbox: what no answer needs and what its other limits do not cover fails with EPERM.

Shared memory of System V, for one, counts towards no limit of a process, and sockets to the hypervisor know no network namespace.
"""

from __future__ import annotations

import errno
import platform
import struct

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
_NUMBER_AT, _MACHINE_AT = 0, 4
_OTHER_ABI = 0x40000000
"""System calls of x86 in its third numbering begin here."""

# fmt: off
_DENIED: dict[str, tuple[int, dict[str, int]]] = {
    "x86_64": (0xC000003E, {
        "shmget": 29, "shmat": 30, "shmctl": 31, "socket": 41, "semget": 64, "msgget": 68, "ptrace": 101, "mount": 165,
        "add_key": 248, "request_key": 249, "keyctl": 250, "mq_open": 240, "unshare": 272, "perf_event_open": 298, "setns": 308,
        "process_vm_readv": 310, "process_vm_writev": 311, "memfd_create": 319, "bpf": 321, "userfaultfd": 323, "io_uring_setup": 425,
    }),
    "aarch64": (0xC00000B7, {
        "shmget": 194, "shmctl": 195, "shmat": 196, "socket": 198, "semget": 190, "msgget": 186, "ptrace": 117, "mount": 40,
        "add_key": 217, "request_key": 218, "keyctl": 219, "mq_open": 180, "unshare": 97, "perf_event_open": 241, "setns": 268,
        "process_vm_readv": 270, "process_vm_writev": 271, "memfd_create": 279, "bpf": 280, "userfaultfd": 282, "io_uring_setup": 425,
    }),
}
# fmt: on


def program(machine: str | None = None) -> bytes | None:
    """The filter as the kernel reads it, for this kind of processor or the one named; ``None`` where it is not known."""
    known = _DENIED.get(machine or platform.machine())
    if known is None:
        return None
    audit, denied = known
    numbers = sorted(denied.values())
    checks = [*((_EQUAL, number) for number in numbers), (_AT_LEAST, _OTHER_ABI)]
    lines = [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        *((operation, len(checks) - at, 0, value) for at, (operation, value) in enumerate(checks)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    return b"".join(struct.pack("<HBBI", *line) for line in lines)
