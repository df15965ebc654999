"""Which engine serves on a host."""

from __future__ import annotations

from autotuner.engines.base import Engine
from autotuner.engines.sglang import SglangEngine
from autotuner.errors import UsageError
from autotuner.model.host import Host


def engine_for(host: Host) -> Engine:
    """The engine of a host. Raises ``UsageError`` for one that this version cannot drive."""
    if host.engine.name != "sglang":
        raise UsageError(
            f"host {host.name}: engine {host.engine.name} is not available in this version", hint="use a host whose engine.name is sglang"
        )
    if host.simulate is not None:
        from autotuner.engines.simulated.engine import SimulatedEngine  # noqa: PLC0415 - loaded only where a host is simulated

        return SimulatedEngine()
    return SglangEngine()
