"""Watching the server of a cell and its GPUs, over the ways that a session has to its host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from autotuner.deploy.reach import Route
from autotuner.discover.gpu_watch import GpuWatch, server_processes
from autotuner.engines.base import Engine
from autotuner.loadgen.observation import ASK_S, PERIOD_ON_HOST_S, PERIOD_S, Observer, PageReader, ServerWatch
from autotuner.model.facts import Gpu
from autotuner.model.host import Host
from autotuner.services.hostside import HostSide


@contextmanager
def observed(host: Host, engine: Engine, host_side: HostSide, route: Route, gpus: Sequence[Gpu]) -> Iterator[Observer]:
    """An observer of what serves on the host, for as long as one cell is measured. A simulated host has no GPUs to watch."""
    with ExitStack() as stack:
        reader: PageReader | None = None
        path = engine.endpoints.metrics
        if path is not None:
            control = stack.enter_context(route.control(timeout_s=ASK_S))
            reader = PageReader(lambda: control.get_text(path), engine.counters, engine.gauges)
        watch: GpuWatch | None = None
        if gpus and host.simulate is None:
            port = host.endpoint.port
            indices = {gpu.index for gpu in gpus}
            watch = stack.enter_context(GpuWatch(host_side, indices, ours=lambda: server_processes(port, host_side)))
        period_s = PERIOD_S if route.path.source == "controller" else PERIOD_ON_HOST_S
        yield stack.enter_context(ServerWatch(reader, gpus=watch, period_s=period_s))
