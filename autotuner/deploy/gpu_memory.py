"""GPU memory of the host between launches: what a stopped server held must be free before the next one starts."""

from __future__ import annotations

import time

from autotuner.discover import gpus
from autotuner.discover.discovery import find_gpus
from autotuner.errors import StopStudy
from autotuner.model.host import Host
from autotuner.transports.base import Transport

SLACK_MIB = 300
"""The driver's own share moves by this much."""
SETTLE_S = 60.0
"""A driver gives the memory of a killed process back within a few seconds, seldom within many."""

_POLL_S = 0.5
_CALM_READS = 3
_TIMEOUT_S = 30.0


class GpuMemory:
    """Knows what the GPUs hold when no server runs, and waits until that is so again. Does nothing without GPUs."""

    def __init__(self, host: Host, transport: Transport) -> None:
        self._transport = transport
        self._wanted: frozenset[str] = frozenset()
        if host.simulate is None:
            self._wanted = frozenset(gpu.uuid for gpu in find_gpus(host, transport)[0])
        self._idle: dict[str, int] | None = None

    def settle(self) -> None:
        """Wait until memory is back. The first time, when idle is not known yet: until it no longer falls; that is idle.

        Raises ``StopStudy`` naming the GPU and who holds it.
        """
        if not self._wanted:
            return
        if self._idle is None:
            self._idle = self._steady()
            return
        deadline = time.monotonic() + SETTLE_S
        while held := self._above(self._idle):
            if time.monotonic() > deadline:
                raise self._held(held)
            time.sleep(_POLL_S)

    def _steady(self) -> dict[str, int]:
        deadline = time.monotonic() + SETTLE_S
        before, calm = self._used(), 0
        while calm < _CALM_READS and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            now = self._used()
            calm = calm + 1 if all(now.get(uuid, 0) >= used for uuid, used in before.items()) else 0
            before = now
        return before

    def _above(self, idle: dict[str, int]) -> dict[str, int]:
        used = self._used()
        return {uuid: used[uuid] - held for uuid, held in idle.items() if uuid in used and used[uuid] > held + SLACK_MIB}

    def _used(self) -> dict[str, int]:
        done = self._transport.run(gpus.MEMORY_COMMAND, timeout_s=_TIMEOUT_S)
        return {uuid: used for uuid, used in gpus.parse_memory(done.stdout).items() if uuid in self._wanted}

    def _held(self, held: dict[str, int]) -> StopStudy:
        done = self._transport.run(gpus.PROCESSES_COMMAND, timeout_s=_TIMEOUT_S)
        users = [process for process in gpus.parse_processes(done.stdout) if process.gpu in held]
        named = ", ".join(f"{process.name} (pid {process.pid})" for process in users) or "no process that can be seen"
        most = max(held.values())
        return StopStudy(
            f"{len(held)} GPUs hold up to {most} MiB more than when idle, {SETTLE_S:g} s after the server ended; held by {named}",
            hint="stop that process; when there is none, the driver leaks: reset the GPU (nvidia-smi -r) or reboot",
        )
