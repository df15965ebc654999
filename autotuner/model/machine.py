"""Machine: the state of a host's hardware and operating system when it was looked over. No part of it belongs to a fingerprint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Limit = tuple[int | None, int | None]
"""Soft and hard limit of a resource; ``None`` is unlimited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """What changes about a GPU; ``None`` where the driver does not say."""

    index: int
    bus: str = ""
    """PCI address: ``00000000:17:00.0``."""
    persistence: bool | None = None
    mig: bool | None = None
    ecc_uncorrected: int | None = None
    """Uncorrectable memory errors since the driver was loaded."""
    sm_mhz: int | None = None
    sm_max_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    name: str
    memory_mib: int | None
    """``None`` where the driver does not say (inside some containers)."""
    gpu: str
    """UUID of the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """A part of a GPU that is a device of its own."""

    uuid: str
    profile: str
    """Slices and memory: ``3g.40gb``."""
    parent: int
    """Index of the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinity:
    """Processors and memory that are near to a GPU, as the driver lists them."""

    cpus: str = ""
    numa: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """The file system that holds a path."""

    path: str
    """The path that was asked about; where it is not there yet, the nearest folder above it counts."""
    kind: str
    """``ext4``, ``xfs``, ``nfs4``, ``tmpfs`` …"""
    size_gib: float
    free_gib: float
    """What an ordinary user may still write."""
    mount: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Socket:
    """A listening TCP socket, as far as this user may see whose it is."""

    address: str
    port: int
    holders: tuple[tuple[str, int], ...] = ()
    """(program, pid) of every process that holds it; empty where they are another user's."""
    uid: int | None = None
    """Owner's user id."""
    unit: str | None = None
    """systemd unit that it belongs to, where the kernel tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A systemd unit as its manager describes it."""

    name: str
    load: str
    """``loaded``, ``not-found``, ``masked``, ``bad-setting`` …"""
    active: str
    enablement: str
    """``enabled``, ``disabled``, ``static`` … empty for a unit without a file."""
    fragment: str = ""
    user: str = ""
    main_pid: int | None = None
    needs_reload: bool = False
    """Its files were changed on disk since the manager read them."""
    limits: Mapping[str, int | None] = field(default_factory=dict)
    """Hard limits by name (``nofile``, ``memlock``); ``None`` is unlimited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """The CUDA toolkit that kernels are compiled with."""

    version: tuple[int, int]
    where: str
    compiler: bool = True
    """Whether ``nvcc`` is there, too, and not only the libraries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processors:
    """The processors of a machine; ``None`` where it does not say."""

    count: int = 0
    model: str | None = None
    sockets: int | None = None
    numa_nodes: int | None = None
    hypervisor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory in GiB."""

    total: float = 0.0
    available: float = 0.0
    swap: float = 0.0
    swap_used: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Everything about a host that is neither its model nor its engine; what could not be found out is empty or ``None``."""

    user: str = ""
    uid: int | None = None
    kernel: str = ""
    os: str = ""
    virtualization: str = ""
    """What the machine runs in: ``none``, ``kvm``, ``docker`` …; empty where it does not say."""
    systemd: int | None = None
    """Version that is installed."""
    booted_by_systemd: bool = False
    cgroups: int | None = None
    """1 or 2."""
    processors: Processors = Processors()
    governors: Mapping[str, int] = field(default_factory=dict)
    """Frequency governor → how many processors it governs; empty on machines that leave it to their hypervisor."""
    memory: Memory = Memory()
    disks: Mapping[str, Disk] = field(default_factory=dict)
    """By role: ``state``, ``caches``, ``shm``, ``model``, ``drafter``."""
    limits: Mapping[str, Limit] = field(default_factory=dict)
    """Of the user's own session, by name (``nofile``, ``memlock``)."""
    sudo: bool | None = None
    """Whether the host's program may be run as root; ``None`` where that was not asked."""
    sockets: tuple[Socket, ...] = ()
    units: tuple[Unit, ...] = ()
    """Those that the host document names."""
    driver_cuda: tuple[int, int] | None = None
    """Newest CUDA version that the driver runs."""
    toolkit: Toolkit | None = None
    gpus: tuple[GpuState, ...] = ()
    clock_reasons: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """GPU index → why its clocks are not at their highest."""
    links: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """(GPU, other GPU) → ``NV18``, ``PIX``, ``PXB``, ``PHB``, ``NODE``, ``SYS``."""
    affinities: Mapping[int, Affinity] = field(default_factory=dict)
    processes: tuple[GpuProcess, ...] = ()
    process_units: Mapping[int, str | None] = field(default_factory=dict)
    """pid of a process on a GPU → its systemd unit; those that cannot be seen from here (of another container) are left out."""
