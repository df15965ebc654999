"""A simulated server as a process of its own, and a client that reads its streams with little work."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from autotuner.services.onhost.processes import SERVICE_MARK, service_mark
from tests.ports import free_port

HARDWARE = {"ct200": {"memory_gib": 96.0, "sm": 120, "link": "pcie"}, "b300": {"memory_gib": 275.0, "sm": 103, "link": "nvlink"}}
PATIENCE_S = 30.0
_MADE = re.compile(rb'"completion_tokens": (\d+)')


@dataclass
class Running:
    """A started server."""

    process: subprocess.Popen[bytes]
    port: int
    log_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health_generate", timeout=5).status_code == 200:
                    return
            time.sleep(0.05)
        raise AssertionError(self.log)

    def wait_log(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.log:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def ended(self) -> int:
        return self.process.wait(timeout=PATIENCE_S)


@contextlib.contextmanager
def server(
    tmp_path: Path, *flags: str, profile: str = "ct200", port: int | None = None, launch: str = "", **simulate: object
) -> Iterator[Running]:
    """A server on a free port; everything of it is gone afterwards."""
    gpu = {"name": "simulated", "count": 8, **HARDWARE[profile]}
    setting = {"profile": profile, "gpu": gpu, "launch_seconds": 0.0, "noise": 0.0, **simulate}
    port = port or free_port()
    argv = [sys.executable, "-m", "autotuner.engines.simulated", "--simulate", json.dumps(setting), "--model-path", "m"]
    argv += ["--served-model-name", "kimi", "--port", str(port), "--context-length", "16384", *flags]
    environment = {**os.environ, SERVICE_MARK: service_mark(launch)} if launch else dict(os.environ)
    log_path = tmp_path / f"server-{port}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, cwd="/", env=environment, start_new_session=True)
    try:
        yield Running(process, port, log_path)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=PATIENCE_S)


async def closed_loop(port: int, *, lanes: int, answer: int, warmup_s: float, window_s: float) -> float:
    """Tokens per second that ``lanes`` clients together see in a window, each asking again as soon as it was answered.

    Answers have between half and one and a half times ``answer`` tokens, so that lanes do not run in lockstep.
    """
    made = 0

    async def lane(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await ask_again_and_again(number, reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def ask_again_and_again(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal made
        for turn in itertools.count():
            length = max(1, round(answer * (0.5 + (number * 7 + turn * 5) % 11 / 10)))
            text = f"[{number}-{turn}] " + "Write quicksort in Python and explain how it works. ".ljust(200, ".")
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": length, "ignore_eos": True, "stream": True}
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
            data = json.dumps(body).encode()
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data))
            seen = 0
            async for part in _until_last_chunk(reader):
                if numbers := _MADE.findall(part):
                    made += int(numbers[-1]) - seen
                    seen = int(numbers[-1])

    tasks = [asyncio.create_task(lane(number)) for number in range(lanes)]
    await asyncio.sleep(warmup_s)
    before, begin = made, time.monotonic()
    await asyncio.sleep(window_s)
    rate = (made - before) / (time.monotonic() - begin)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return rate


async def _until_last_chunk(reader: asyncio.StreamReader):
    rest = b""
    while True:
        part = await reader.read(1 << 16)
        if not part:
            raise AssertionError("the server closed the connection")
        yield part
        rest = (rest + part)[-7:]
        if rest.endswith(b"\r\n0\r\n\r\n"):
            return
