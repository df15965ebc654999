"""The contenders: the product and its peers, each run as a process of its own against the same mock."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.loadgen.handle import ROOT, MockServer, Truth
from benchmarks.loadgen.jobs import Job
from benchmarks.loadgen.rows import Row
from benchmarks.loadgen.venvs import Environment, tokenizer_folder

RUN_TIMEOUT_S = 300
OURS = "autotuner"


class Failed(Exception):
    """A client ended without a report; the message is its last line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a client said about a job, what was true, and what it cost."""

    rows: tuple[Row, ...]
    truth: tuple[Row, ...]
    chunks: int
    """Chunks that the server sent."""
    cpu_s: float
    wall_s: float
    chunk_errors_us: tuple[float, ...] = ()
    point_cpu_s: float | None = None
    """CPU seconds of the point alone, where the client lives on from point to point."""
    held_up: tuple[str, ...] = ()
    """Why the client says of itself that the machine kept it from measuring; only the product does."""


class Client(Protocol):
    """A contender."""

    name: str

    def prepare(self) -> str:
        """Install it; its version. Raises ``NotInstallable``."""
        ...

    def run(self, server: MockServer, job: Job) -> Run:
        """Do a job. Raises ``Failed``."""
        ...


def _spawn(command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, float, float]:
    """Standard output, CPU seconds of the process with all its children, and seconds that it took. Raises ``Failed``."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, env={**os.environ, **environment}, cwd=ROOT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"no end within {RUN_TIMEOUT_S} s") from error
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise Failed((done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1][:200])
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, cpu_s, time.monotonic() - begun


def _true(truths: Sequence[Truth]) -> tuple[tuple[Row, ...], int]:
    return tuple(Row.true(truth) for truth in truths), sum(len(truth.chunks) for truth in truths)


@dataclass(frozen=True, slots=True)
class Ours:
    """The product, by its own measuring path."""

    name: str = OURS

    def prepare(self) -> str:
        """It is here."""
        from autotuner import __version__  # noqa: PLC0415 - asked for by a person who waits for more than this

        return __version__

    def run(self, server: MockServer, job: Job) -> Run:
        """Do a job."""
        text, cpu_s, wall_s = _spawn([sys.executable, "-m", "benchmarks.loadgen.ours", job.text()], {"PYTHONPATH": str(ROOT)})
        told = json.loads(text)
        return Run(
            rows=tuple(Row.of(row) for row in told["requests"]),
            truth=tuple(Row.of(row) for row in told["truth"]),
            chunks=told["chunks"],
            cpu_s=cpu_s,
            wall_s=wall_s,
            chunk_errors_us=tuple(told["chunk_errors_us"]),
            point_cpu_s=told["point_cpu_s"],
            held_up=tuple(told["held_up"]),
        )


@dataclass(frozen=True, slots=True)
class Driven:
    """A peer's client that one of ``drivers`` drives, in the peer's environment."""

    name: str
    driver: str
    environment: Environment
    uvloop: bool = False

    def prepare(self) -> str:
        """Install it."""
        return self.environment.prepare()

    def run(self, server: MockServer, job: Job) -> Run:
        """Do a job."""
        text = Job(**{**json.loads(job.text()), "uvloop": self.uvloop}).text()
        variables = {"PYTHONPATH": str(ROOT), "PEER_SOURCE": str(self.environment.source or "")}
        server.truth()
        out, cpu_s, wall_s = _spawn([str(self.environment.python), "-m", f"benchmarks.loadgen.drivers.{self.driver}", text], variables)
        told = json.loads(out.splitlines()[-1])
        truth, chunks = _true(server.truth())
        rows = tuple(Row.of(row) for row in told["requests"])
        return Run(rows=rows, truth=truth, chunks=chunks, cpu_s=cpu_s, wall_s=wall_s, chunk_errors_us=tuple(told["chunk_errors_us"]))


@dataclass(frozen=True, slots=True)
class Guidellm:
    """guidellm by its command line."""

    environment: Environment
    name: str = "guidellm"

    def prepare(self) -> str:
        """Install it, and make a tokenizer."""
        version = self.environment.prepare()
        tokenizer_folder(self.environment)
        return version

    def run(self, server: MockServer, job: Job) -> Run:
        """Do a job."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "out.json"
            command = [
                *(str(self.environment.folder / "bin" / "guidellm"), "run", "--disable-console"),
                *("--backend", f"kind=openai_http,target={job.url},model={job.model},validate_backend=false"),
                *("--profile", f"kind=concurrent,streams={job.concurrency}"),
                *("--constraint", f"kind=max_requests,count={job.requests}"),
                *("--tokenizer", f"kind=huggingface_auto,model={tokenizer_folder(self.environment)}"),
                *("--data", f"kind=synthetic_text,prompt_tokens={job.context},output_tokens={job.output_tokens}"),
                *("--output", f"kind=json,path={path}"),
            ]
            server.truth()
            _, cpu_s, wall_s = _spawn(command, {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"})
            requests = json.loads(path.read_text())["benchmarks"][0]["requests"]
        truth, chunks = _true(server.truth())
        rows = [
            Row(
                ok=True,
                ttft_s=(raw["time_to_first_token_ms"] or 0) / 1e3,
                tpot_s=None if raw["inter_token_latency_ms"] is None else raw["inter_token_latency_ms"] / 1e3,
                e2e_s=raw["request_latency"],
                tokens=raw["output_tokens"],
            )
            for raw in requests["successful"]
        ]
        rows += [Row(ok=False, ttft_s=None, tpot_s=None, e2e_s=None, tokens=None)] * len(requests["errored"])
        return Run(rows=tuple(rows), truth=truth, chunks=chunks, cpu_s=cpu_s, wall_s=wall_s)


@dataclass(frozen=True, slots=True)
class Aiperf:
    """aiperf by its command line, counting by the server's usage, as it does best."""

    environment: Environment
    name: str = "aiperf"

    def prepare(self) -> str:
        """Install it, and make a tokenizer."""
        version = self.environment.prepare()
        tokenizer_folder(self.environment)
        return version

    def run(self, server: MockServer, job: Job) -> Run:
        """Do a job."""
        with tempfile.TemporaryDirectory() as folder:
            command = [
                *(str(self.environment.folder / "bin" / "aiperf"), "profile", "-m", job.model, "--url", job.url),
                *("--endpoint-type", "chat", "--streaming", "--use-server-token-count", "--per-chunk-usage"),
                *("--concurrency", str(job.concurrency), "--request-count", str(job.requests)),
                *("--isl", str(job.context), "--osl", str(job.output_tokens), "--tokenizer", str(tokenizer_folder(self.environment))),
                *("--ui", "none", "--artifact-dir", folder, "--export-level", "records"),
            ]
            server.truth()
            _, cpu_s, wall_s = _spawn(command, {"TOKENIZERS_PARALLELISM": "false"})
            lines = (Path(folder) / "profile_export.jsonl").read_text().splitlines()
        truth, chunks = _true(server.truth())
        rows = tuple(self._row(json.loads(line)) for line in lines)
        return Run(rows=rows, truth=truth, chunks=chunks, cpu_s=cpu_s, wall_s=wall_s)

    def _row(self, raw: Mapping[str, Any]) -> Row:
        values = {name: entry["value"] for name, entry in (raw.get("metrics") or {}).items()}
        seconds = {name: values[name] / 1e3 if values.get(name) is not None else None for name in _AIPERF}
        failed = bool(raw.get("error")) or seconds["time_to_first_token"] is None
        return Row(
            ok=not failed,
            ttft_s=seconds["time_to_first_token"],
            tpot_s=seconds["inter_token_latency"],
            e2e_s=seconds["request_latency"],
            tokens=values.get("output_sequence_length"),
        )


_AIPERF = ("time_to_first_token", "inter_token_latency", "request_latency")


def contenders() -> tuple[Client, ...]:
    """All that there are, the product first."""
    plain = Environment(name="plain", packages=("httpx", "aiohttp", "uvloop"))
    vllm = Environment(
        name="vllm", packages=("aiohttp", "regex", "tqdm"), wheel="vllm", member="vllm/benchmarks/lib/endpoint_request_func.py"
    )
    sglang = Environment(
        name="sglang",
        packages=("aiohttp", "msgspec", "numpy", "orjson", "requests", "tqdm"),
        wheel="sglang",
        member="sglang/benchmark/serving.py",
    )
    guidellm = Environment(name="guidellm", packages=("guidellm", "uvloop"))
    aiperf = Environment(name="aiperf", packages=("aiperf", "uvloop"))
    return (
        Ours(),
        Driven("aiohttp", "plain_aiohttp", plain, uvloop=True),
        Driven("httpx", "plain_httpx", plain),
        Driven("vllm", "vllm_function", vllm),
        Driven("sglang", "sglang_function", sglang),
        Guidellm(guidellm),
        Aiperf(aiperf),
    )
