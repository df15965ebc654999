"""A server that streams chat answers by a script, and a cell measured on it."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Callable

from autotuner.engines.base import Counters
from autotuner.loadgen.cells import CellMeasurement, CellPlan, measure_cell
from autotuner.loadgen.fleet import Fleet
from autotuner.loadgen.observation import Observer
from autotuner.loadgen.prompts import PromptSource
from autotuner.loadgen.validity import relaxed
from autotuner.model.workload import Cell, Sampling

PATH = "/v1/chat/completions"
PLAN = relaxed(CellPlan(window_s=0.6, warmup_s=0.3, max_window_s=1.5, max_warmup_s=1.5, settle_s=0.3, request_timeout_s=10, min_answers=2))
OVERHEAD, CHARS_PER_TOKEN = 13, 3.3


class ScriptedServer:
    """Streams chat answers by a script that the model's name selects; knows what it sent and when. ``tls`` has it speak HTTPS."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.requests: list[dict[str, object]] = []
        self.sent: list[tuple[float, int]] = []
        self.open = 0
        self.tokens_finished = 0
        self.steps_finished = 0
        self.step_s = 0.01
        self._clients: set[object] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}"

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._client, "127.0.0.1", 0, backlog=512, ssl=self._tls)

    def die(self) -> None:
        """Close everything, as a killed process does."""
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._die(), self._loop).result()

    async def _die(self) -> None:
        for listening in self._server.sockets:
            self._loop.remove_reader(listening)
        # A connection that is just being accepted must become a client first: asyncio forgets its socket otherwise.
        while tasks := [task for task in asyncio.all_tasks() if task.get_coro().__name__ != "_die"]:  # type: ignore[union-attr]
            for task in tasks:
                if task in self._clients:
                    task.cancel()
            await asyncio.sleep(0)
        self._server.close()

    def close(self) -> None:
        self.die()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def counters(self) -> Counters:
        return Counters(generation_tokens=self.tokens_finished, verify_steps=self.steps_finished, retractions=0)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(asyncio.current_task())
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")).split(b":")[1])
            body = json.loads(await reader.readexactly(length))
            self.requests.append(body)
            self.open += 1
            try:
                await self._answer(writer, body, len(self.requests))
                await writer.drain()
            finally:
                self.open -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, body: dict[str, object], number: int) -> None:
        script = str(body["model"])
        if script == "http-500":
            writer.write(b"HTTP/1.1 500 Oops\r\nContent-Length: 9\r\n\r\nit broke\n")
            return
        if not body.get("stream"):
            tokens = OVERHEAD + round(len(str(body["messages"][0]["content"])) / CHARS_PER_TOKEN)  # type: ignore[index]
            text = json.dumps({"usage": {"prompt_tokens": tokens, "completion_tokens": 1}} if script != "no-usage" else {}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        await self._stream(writer, script, int(str(body["max_tokens"])), number)

    async def _stream(self, writer: asyncio.StreamWriter, script: str, tokens: int, number: int) -> None:
        def event(data: dict[str, object] | bytes) -> None:
            text = data if isinstance(data, bytes) else json.dumps(data).encode()
            payload = b"data: " + text + b"\n\n"
            writer.write(b"%x\r\n" % len(payload) + payload + b"\r\n")

        per_chunk = 3
        usage = script != "no-usage"
        continuous = script not in ("no-usage", "final-usage")
        event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        if script == "hang-one" and number == 3:
            await asyncio.sleep(60)
        done = 0
        while done < tokens:
            await asyncio.sleep(self.step_s)
            done = min(tokens, done + per_chunk)
            chunk: dict[str, object] = {"choices": [{"delta": {"content": "a\u2028b"}}]}
            if continuous:
                chunk["usage"] = {"prompt_tokens": 60, "completion_tokens": done}
                if script == "cached":
                    chunk["usage"] |= {"prompt_tokens_details": {"cached_tokens": 70}}  # type: ignore[operator]
            event(chunk)
            await writer.drain()
            self.sent.append((time.monotonic(), min(per_chunk, tokens)))
            if done >= 9 and self._fault(script, writer, event):
                return
        if script != "no-finish":
            event({"choices": [{"delta": {}, "finish_reason": "stop" if script == "stops" else "length"}]})
        if usage:
            event({"choices": [], "usage": {"prompt_tokens": 60, "completion_tokens": tokens}})
        if script != "no-done":
            event(b"[DONE]")
        writer.write(b"0\r\n\r\n")
        self.tokens_finished += tokens
        self.steps_finished += -(-tokens // per_chunk)

    def _fault(self, script: str, writer: asyncio.StreamWriter, event: Callable[[dict[str, object] | bytes], None]) -> bool:
        if script == "in-band":
            event({"error": {"message": "out of luck", "code": 500}})
            event(b"[DONE]")
            writer.write(b"0\r\n\r\n")
        elif script == "malformed":
            event(b'{"choices": [')
            event(b"[DONE]")
            writer.write(b"0\r\n\r\n")
        return script in ("in-band", "malformed", "truncated")


def measure(
    server: ScriptedServer,
    script: str,
    *,
    concurrency: int = 4,
    output_tokens: int = 48,
    plan: CellPlan = PLAN,
    counters: Callable[[], Counters] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    observe: Observer | None = None,
    before_attempt: Callable[[], None] | None = None,
    sampling: Sampling = Sampling(),  # noqa: B008 - frozen
    context: int = 60,
    workers: Fleet | None = None,
) -> CellMeasurement:
    return measure_cell(
        server.url,
        model=script,
        chat_path=PATH,
        cell=Cell(context=context, concurrency=concurrency, output_tokens=output_tokens),
        prompts=PromptSource(("code", "poem"), seed=1),
        sampling=sampling,
        plan=plan,
        read_counters=counters,
        should_stop=should_stop,
        observe=observe,
        before_attempt=before_attempt,
        workers=workers,
    )


def wait_until(holds: Callable[[], bool], timeout_s: float = 10) -> bool:
    end = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return holds()
