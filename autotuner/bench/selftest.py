"""Drives the load generator against a simulated engine on this machine: what it costs by itself, and up to where it can be trusted.

The engine is a process of its own, but shares the processors with its client: what is found is an upper bound of the client's own part.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import autotuner
from autotuner.bench.floor import Floor, FloorPoint
from autotuner.errors import AutotunerError, Interrupted, TransportError
from autotuner.loadgen.calibration import calibrate
from autotuner.loadgen.cells import CellMeasurement, measure_cell
from autotuner.loadgen.control import ControlClient
from autotuner.loadgen.fleet import fleet
from autotuner.loadgen.plan import CellPlan
from autotuner.loadgen.prompts import PromptSource
from autotuner.model.workload import Cell, Sampling

PLAN = CellPlan(window_s=2.0, max_window_s=6.0, warmup_s=1.0, settle_s=1.0, max_warmup_s=20.0, request_timeout_s=30.0)
STEP = 4
"""From one concurrency to the next."""
_CONTEXT = 60
_OUTPUT_TOKENS = 128
_READY_S = 60.0
_POLL_S = 0.1
_MODEL = "simulated"
_CHAT = "/v1/chat/completions"
_SETTING = {
    "profile": "b300",
    "gpu": {"name": "simulated", "count": 8, "memory_gib": 275.0, "sm": 103, "link": "nvlink"},
    "launch_seconds": 0.0,
    "noise": 0.0,
}
_UNTIL_INPUT_ENDS = """
"$@" &
server=$!
trap 'kill "$server"' EXIT
trap exit HUP INT TERM
read -r _
"""
"""Runs a command and ends it when the input ends: with its parent, however that ends."""


def steps_to(wanted: int) -> tuple[int, ...]:
    """The concurrencies to try: powers of four below the wanted one, and that."""
    found, step = [], 1
    while step < wanted:
        found.append(step)
        step *= STEP
    return (*found, wanted)


def measure_floor(
    wanted: int, *, should_stop: Callable[[], bool], plan: CellPlan, on_point: Callable[[FloorPoint], None] = lambda _: None
) -> Floor:
    """Measure up to the ``wanted`` concurrency; ends early at the first that is not valid. ``on_point`` hears of each.

    Raises ``AutotunerError`` when the engine does not start, ``Interrupted`` within a second of ``should_stop``.
    """
    points: list[FloorPoint] = []
    clock = "user"
    with simulated_engine(wanted, should_stop) as base_url, ControlClient(base_url) as control:
        prompts = PromptSource(("code", "explanation")).with_fit(calibrate(control, model=_MODEL, chat_path=_CHAT, contexts=(_CONTEXT,)))
        for concurrency in steps_to(wanted):
            found = measure_cell(
                base_url,
                model=_MODEL,
                chat_path=_CHAT,
                cell=Cell(context=_CONTEXT, concurrency=concurrency, output_tokens=_OUTPUT_TOKENS),
                prompts=prompts,
                sampling=Sampling(),
                plan=plan,
                read_counters=None,
                should_stop=should_stop,
            )
            points.append(_point(concurrency, found))
            clock = found.result.client.clock if found.result.client is not None else clock
            on_point(points[-1])
            if not points[-1].valid:
                break
    return Floor(
        machine=platform.node(),
        cpus=len(os.sched_getaffinity(0)),
        at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        tool=autotuner.__version__,
        clock=clock,
        wanted=wanted,
        points=tuple(points),
    )


def _point(concurrency: int, found: CellMeasurement) -> FloorPoint:
    client, length_s = found.result.client, found.result.window_s
    inside = sum(found.window.holds(at_s) for record in found.records for at_s, _ in record.chunks)
    if client is None or found.result.requests == 0 or length_s <= 0:
        why = ", ".join(f"{count} × {kind}" for kind, count in found.result.errors.items()) or "nothing was answered"
        return FloorPoint(
            concurrency=concurrency,
            chunks_s=0.0,
            lag_p50_ms=None,
            lag_p99_ms=None,
            lag_max_ms=None,
            cpu=0.0,
            cpu_us_per_chunk=None,
            coalesced=0.0,
            invalid=(f"the simulated engine answered no request ({why})",),
        )
    processes = fleet().size(concurrency)
    return FloorPoint(
        concurrency=concurrency,
        chunks_s=inside / length_s,
        lag_p50_ms=client.lag_p50_ms,
        lag_p99_ms=client.lag_p99_ms,
        lag_max_ms=client.lag_max_ms,
        cpu=client.cpu,
        cpu_us_per_chunk=client.cpu * length_s * processes / inside * 1e6 if inside else None,
        coalesced=client.coalesced,
        invalid=client.invalid,
    )


@contextmanager
def simulated_engine(concurrency: int, should_stop: Callable[[], bool]) -> Iterator[str]:
    """A simulated engine that serves so many requests at once, on a free port of this machine; its root address.

    It ends with this process, whatever ends that. Raises ``AutotunerError`` with the end of its log when it does not start.
    """
    with tempfile.TemporaryDirectory(prefix="autotuner-self-test-") as folder:
        port, log = _free_port(), Path(folder) / "server.log"
        engine = (sys.executable, "-m", "autotuner.engines.simulated", "--simulate", json.dumps(_SETTING), "--model-path", _MODEL)
        flags = ("--served-model-name", _MODEL, "--port", str(port), "--tp-size", "8", "--context-length", "4096")
        argv = ("sh", "-c", _UNTIL_INPUT_ENDS, "self-test", *engine, *flags, "--max-running-requests", str(max(8, concurrency)))
        with log.open("wb") as out:
            # A session of its own: Ctrl-C is for this process, which then ends it in good order.
            shell = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            base_url = f"http://127.0.0.1:{port}"
            _wait_ready(base_url, shell, log, should_stop)
            yield base_url
        finally:
            if shell.stdin is not None:
                shell.stdin.close()
            try:
                shell.wait(_READY_S)
            except subprocess.TimeoutExpired:
                shell.kill()
                shell.wait()


def _wait_ready(base_url: str, shell: subprocess.Popen[bytes], log: Path, should_stop: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _READY_S
    with ControlClient(base_url, timeout_s=5) as control:
        while not _answers(control):
            if should_stop():
                raise Interrupted("the self-test was stopped")
            if shell.poll() is not None or time.monotonic() > deadline:
                said = log.read_text(errors="replace").strip().splitlines()[-1:]
                raise AutotunerError(
                    f"the simulated engine of the self-test did not start: {''.join(said) or 'it said nothing'}",
                    hint="is the machine overloaded? `python -m autotuner.engines.simulated --help` should answer",
                )
            time.sleep(_POLL_S)


def _answers(control: ControlClient) -> bool:
    """Ready at the health check, and at a completion: the listing of its model alone would come too early."""
    try:
        return control.status("/health_generate") == 200 and bool(control.get_json("/v1/models"))
    except TransportError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
