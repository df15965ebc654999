"""The simulated server: start-up, HTTP interface, crashes and injected faults. One process, one event loop, the standard library."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable

from autotuner.engines.simulated import pages
from autotuner.engines.simulated.completions import Ask, Stream, UnusableRequestError, Usage, Whole, parse_ask
from autotuner.engines.simulated.crash import SIGQUIT, scheduler_exception
from autotuner.engines.simulated.resolve import Resolved
from autotuner.engines.simulated.scheduler import Request, Scheduler
from autotuner.engines.simulated.setting import Fault, Setting
from autotuner.engines.simulated.startup import RANK, Ending, startup
from autotuner.engines.simulated.tokens import PrefixCache
from autotuner.engines.simulated.wire import (
    HEAD_LIMIT,
    REASONS,
    TEXT,
    Answer,
    HttpRequest,
    MalformedRequestError,
    chunk,
    read_request,
)

WARMUP_SHARE = 0.1
WARMUP_TOKENS = 8
HEALTH_TIMEOUT_S = 20.0
_OPEN_PATHS = ("/health", "/health_generate", "/metrics")
_FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)
_DIE_AFTER_S = 0.2
"""A server that is to die does so in the middle of an answer."""


def log(line: str, rank: str = "") -> None:
    """Print a line as the engine does, with its time and the rank."""
    where = f" {rank}" if rank else ""
    sys.stderr.write(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{where}] {line}\n")
    sys.stderr.flush()


class SimulatedServer:
    """Serves one resolved configuration until it is told to stop or crashes."""

    def __init__(self, resolved: Resolved, setting: Setting) -> None:
        self._resolved, self._setting = resolved, setting
        self._scheduler = Scheduler(resolved, setting, log=lambda line: log(line, RANK), crash=self._crash)
        self._cache = PrefixCache()
        self._ready = False
        self._stopped = asyncio.Event()
        self._seen = 0
        self._api_key = resolved.args.api_key
        self._routes: dict[str, tuple[tuple[str, ...], Callable[[], Awaitable[Answer]]]] = {
            "/health": (("GET",), self._health),
            "/health_generate": (("GET",), self._health),
            "/server_info": (("GET",), self._server_info),
            "/get_server_info": (("GET",), self._server_info),
            "/model_info": (("GET",), self._model_info),
            "/get_model_info": (("GET",), self._model_info),
            "/v1/models": (("GET",), self._models),
            "/flush_cache": (("GET", "POST"), self._flush),
        }
        if resolved.args.enable_metrics:
            self._routes["/metrics"] = (("GET",), self._metrics)

    async def run(self) -> int:
        """Start, serve, stop. The exit code, unless a crash ends the process before."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        serving = asyncio.create_task(self._start_and_serve())
        stopping = asyncio.create_task(self._stopped.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        code = serving.result() if serving.done() else 0
        for task in (serving, stopping):
            task.cancel()
        await asyncio.gather(serving, stopping, return_exceptions=True)
        return code

    def _stop(self, number: signal.Signals) -> None:
        log(f"{number.name} received. signum=None frame=None. Draining requests and shutting down...")
        self._stopped.set()

    async def _start_and_serve(self) -> int:
        for beat in startup(self._resolved, self._setting):
            if isinstance(beat, Ending):
                self._crash(beat)
            else:
                await asyncio.sleep(beat.share * self._launch_seconds)
                for line in beat.lines:
                    log(line, beat.rank)
        address, port = self._resolved.args.host, self._resolved.args.port
        log(f"INFO:     Started server process [{os.getpid()}]")
        log("INFO:     Waiting for application startup.")
        try:
            server = await asyncio.start_server(self._connection, address, port, limit=HEAD_LIMIT, backlog=1024)
        except OSError as error:
            log(f"ERROR:    [Errno {error.errno}] error while attempting to bind on address ('{address}', {port}): address already in use")
            return 1
        log("INFO:     Application startup complete.")
        port = server.sockets[0].getsockname()[1]
        log(f"INFO:     Uvicorn running on http://{address}:{port} (Press CTRL+C to quit)")
        async with server, asyncio.TaskGroup() as group:
            group.create_task(self._scheduler.run())
            group.create_task(self._warm_up())
        return 0

    @property
    def _launch_seconds(self) -> float:
        slow = sum(fault.seconds for fault in self._setting.faults if fault.kind == "slow-start")
        return self._setting.launch_seconds + slow

    async def _warm_up(self) -> None:
        if any(fault.kind == "never-ready" for fault in self._setting.faults):
            return
        if not self._resolved.args.skip_server_warmup:
            await asyncio.sleep(WARMUP_SHARE * self._launch_seconds)
            await self._generate(WARMUP_TOKENS)
        self._ready = True
        log("The server is fired up and ready to roll!")

    async def _generate(self, count: int) -> None:
        """Generate ``count`` tokens from a prompt of six."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def emit(_: int, end: bool) -> None:  # noqa: FBT001 - called once per step by the scheduler
            if end and not done.done():
                done.set_result(None)

        request = Request(6, 0, count, "explanation", emit)
        self._scheduler.submit(request, at_once=True)
        try:
            await done
        finally:
            request.gone = True

    def _crash(self, ending: Ending) -> None:
        """End as the engine does: the scheduler's traceback, then the parent kills the process tree, itself included."""
        log(scheduler_exception(ending.stage, ending.message, ending.source), RANK)
        log(SIGQUIT)
        os.kill(os.getpid(), signal.SIGKILL)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = writer.get_extra_info("peername")[:2]
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            try:
                while (request := await read_request(reader)) is not None:
                    status = await self._serve(request, reader, writer)
                    log(f'INFO:     {host}:{port} - "{request.method} {request.path} HTTP/1.1" {status} {REASONS[status]}')
                    await writer.drain()
                    if writer.is_closing() or not request.keep_alive:
                        break
            except MalformedRequestError as error:
                writer.write(Answer.error(error.status, str(error)).encode(keep_alive=False))
        writer.close()

    async def _serve(self, request: HttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        """Answer one request; the status."""
        if self._api_key and request.path not in _OPEN_PATHS and request.headers.get("authorization") != f"Bearer {self._api_key}":
            answer = Answer.of({"error": "Unauthorized"}, 401)
        elif request.path in {"/v1/chat/completions", "/v1/completions"}:
            completed = await self._complete(request, reader, writer)
            if completed is None:
                return 200
            answer = completed
        else:
            answer = await self._page(request)
        writer.write(answer.encode(keep_alive=request.keep_alive))
        return answer.status

    async def _page(self, request: HttpRequest) -> Answer:
        methods, page = self._routes.get(request.path, ((), self._models))
        if not methods:
            return Answer.of({"detail": "Not Found"}, 404)
        if request.method not in methods:
            return Answer.of({"detail": "Method Not Allowed"}, 405)
        return await page()

    async def _health(self) -> Answer:
        """503 while starting; then a token is generated, and a busy server that made one in time is as good."""
        if not self._ready:
            return Answer(503, b"", TEXT)
        before = self._scheduler.totals.generation_tokens
        try:
            await asyncio.wait_for(self._generate(1), HEALTH_TIMEOUT_S)
        except TimeoutError:
            if self._scheduler.totals.generation_tokens == before:
                log("Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.")
                return Answer(503, b"", TEXT)
        return Answer(200, b"", TEXT)

    async def _server_info(self) -> Answer:
        return Answer.of(pages.server_info(self._resolved, self._scheduler, status="ready" if self._ready else "starting"))

    async def _model_info(self) -> Answer:
        return Answer.of(pages.model_info(self._resolved))

    async def _models(self) -> Answer:
        return Answer.of(pages.models(self._resolved))

    async def _metrics(self) -> Answer:
        return Answer(200, pages.prometheus(self._resolved, self._scheduler).encode(), "text/plain; version=0.0.4; charset=utf-8")

    async def _flush(self) -> Answer:
        if self._scheduler.running or self._scheduler.queued:
            log(f"Cache not flushed because there are pending requests. #queue-req: {self._scheduler.queued}", RANK)
            return Answer(400, _FLUSHED.encode(), TEXT)
        self._cache.flush()
        self._scheduler.reset_gauges()
        log("Cache flushed successfully!", RANK)
        return Answer(200, _FLUSHED.encode(), TEXT)

    async def _complete(self, request: HttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Answer | None:
        """Run a completion; ``None`` when its answer was streamed."""
        if request.method != "POST":
            return Answer.of({"detail": "Method Not Allowed"}, 405)
        try:
            ask = parse_ask(
                request.body,
                chat=request.path == "/v1/chat/completions",
                setting=self._setting,
                context_length=self._resolved.context_length,
                served=self._resolved.served_name,
            )
        except UnusableRequestError as error:
            return Answer.error(400, str(error))
        fault = next((fault for fault in self._setting.faults if fault.strikes(self._seen)), None)
        self._seen += 1
        if fault is not None and fault.kind == "http-500":
            return Answer.error(500, "Internal server error", "InternalServerError")
        if fault is not None and fault.kind == "die":
            message = "RuntimeError: simulated fault: the scheduler was told to die"
            asyncio.get_running_loop().call_later(_DIE_AFTER_S, self._crash, Ending("serve", message))
        return await self._generate_answer(ask, fault, reader, writer)

    async def _generate_answer(
        self, ask: Ask, fault: Fault | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Answer | None:
        cached = 0 if self._resolved.args.disable_radix_cache else min(self._cache.use(ask.prompt), ask.prompt_tokens - 1)
        usage = Usage(ask, cached if self._resolved.args.enable_cache_report else None)
        sink = Stream(ask, usage, writer.write) if ask.stream else Whole(ask, usage)
        emit = sink.emit if fault is None else _spoiled(sink, fault, writer)
        request = Request(ask.prompt_tokens, cached, ask.answer_tokens, ask.domain, emit)
        self._scheduler.submit(request)
        try:
            await _until_done(sink.done, reader, writer)
        finally:
            request.gone = True
        if isinstance(sink, Stream) or not sink.done.done():
            return None
        return sink.answer() if fault is None else _spoiled_whole(sink.answer(), fault, writer)


_POLL_S = 0.05
_SPOILING = ("in-band-error", "malformed-stream")
_IN_BAND = {"error": {"object": "error", "message": "simulated fault", "type": "InternalServerError", "code": 500}}


async def _until_done(done: asyncio.Future[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Wait for the answer's end, or until the client has gone away."""
    while not done.done() and not writer.is_closing() and not reader.at_eof():
        await asyncio.wait({done}, timeout=_POLL_S)


def _spoiled(sink: Stream | Whole, fault: Fault, writer: asyncio.StreamWriter) -> Callable[[int, bool], None]:
    """What the scheduler calls instead of the sink of a request that a fault strikes: the first tokens come, then the fault."""
    if fault.kind == "hang":
        return lambda made, _: sink.emit(made, False) if made == 1 else None  # noqa: FBT003 - the end never comes
    if isinstance(sink, Whole) or fault.kind not in _SPOILING:
        return sink.emit

    def emit(made: int, _: bool) -> None:  # noqa: FBT001 - called once per step by the scheduler
        if sink.done.done():
            return
        sink.emit(made, False)  # noqa: FBT003 - the end never comes
        if fault.kind == "in-band-error":
            sink.send([json.dumps(_IN_BAND), "[DONE]"])
            writer.write(b"0\r\n\r\n")
        else:
            writer.write(chunk(b'data: {"id": "cut", "choices": [{"delta": {"cont'))
            writer.close()
        sink.done.set_result(None)

    return emit


def _spoiled_whole(answer: Answer, fault: Fault, writer: asyncio.StreamWriter) -> Answer | None:
    """An answer in one piece as a fault leaves it; ``None`` when it was cut off on its way."""
    if fault.kind == "in-band-error":
        return Answer.of(_IN_BAND)
    if fault.kind == "malformed-stream":
        encoded = answer.encode()
        writer.write(encoded[: len(encoded) - len(answer.body) // 2])
        writer.close()
        return None
    return answer
