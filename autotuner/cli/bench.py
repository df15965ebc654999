"""The ``bench`` command: measure any OpenAI-compatible endpoint."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal, get_args

import click
from click.core import ParameterSource

from autotuner.cli.options import JsonEventsCommand, Numbers, Seconds
from autotuner.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from autotuner.bench.endpoint import Endpoint
    from autotuner.bench.plan import BenchPlan
    from autotuner.bench.session import BenchCell
    from autotuner.loadgen.control import ControlClient
    from autotuner.loadgen.prompts import PromptSource
    from autotuner.loadgen.userprompts import UserPrompts

_MOST_TOKENS = 100_000_000
_MOST_CONCURRENT = 4096
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class Rates(click.ParamType[tuple[float, ...]]):
    """Requests per second, separated by commas."""

    name = "rates"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """The rates, lowest first, or a ``BadParameter``."""
        if isinstance(value, tuple):
            return value
        try:
            found = tuple(sorted({float(part) for part in str(value).split(",")}))
        except ValueError:
            found = ()
        if not found or not all(0 < rate <= 10_000 for rate in found):  # false for nan
            self.fail(f"`{value}` is not a list of rates above 0 and up to 10000 requests per second, like 0.5,2", param, ctx)
        return found


class Percent(click.ParamType[float]):
    """A share, written ``2%`` or ``0.02``."""

    name = "percent"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The share, or a ``BadParameter``."""
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = math.nan
        if not 0.001 <= share <= 0.5:
            self.fail(f"`{value}` is not a precision from 0.1% to 50%", param, ctx)
        return share


def _print_metrics(context: click.Context, _parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's own signature
    if value and not context.resilient_parsing:
        from autotuner.cli.bench_text import metrics_table

        click.echo(metrics_table())
        context.exit()


@click.command(cls=JsonEventsCommand, short_help="Measure any OpenAI-compatible endpoint: a matrix, a rate, or a replayed log.")
@click.argument("url")
@click.option("--model", help="Name of the model, as requests give it.  [default: the first of /v1/models]")
@click.option("--label", help="Name of this measurement in its results.  [default: the model's name]")
@click.option("--contexts", default="60,1024,4096", type=Numbers(_MOST_TOKENS), help="Prompt lengths, in tokens.")
@click.option("--concurrency", default="1,8,32", type=Numbers(_MOST_CONCURRENT), help="Requests in flight of the closed loop.")
@click.option("--rate", type=Rates(), help="Open loop: requests per second that arrive at random (Poisson), like 0.5,2.")
@click.option("--fixed-rate", type=Rates(), help="Open loop: requests per second at equal distances.")
@click.option("--prompts", type=_FILE, help="JSONL of own prompts: OpenAI messages, ShareGPT, or texts.")
@click.option("--replay", type=_FILE, help="Open loop: JSONL of requests with the times at which they came.")
@click.option("--keep-prefixes", is_flag=True, help="Send own prompts as they are, without a nonce that keeps the prefix cache out.")
@click.option("--domains", default="code,explanation,arithmetic,poem,json", help="Kinds of prompts of a given length: also prose, rag.")
@click.option("--output-tokens", type=click.IntRange(min=1, max=_MOST_TOKENS), default=256, help="Longest answer, in tokens.")
@click.option("--window", type=Seconds(0.1, 86400), default=10.0, help="Steady window per point, in seconds; the least with --precision.")
@click.option("--max-window", type=Seconds(0.1, 86400), help="How long a window may grow.  [default: four windows]")
@click.option("--precision", type=Percent(), help="Go on until the rate is known to within this, like 2%, or the window is at its limit.")
@click.option("--warmup", type=Seconds(0, 3600), default=3.0, help="Warm-up per point, in seconds.")
@click.option("--max-in-flight", type=click.IntRange(1, _MOST_CONCURRENT), default=1024, help="Of an open loop; further requests wait.")
@click.option("--request-timeout", type=Seconds(1, 86400), default=120.0, help="A request without a byte for so long has failed.")
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.0, help="Of the sampling.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, help="Of the sampling.")
@click.option("--ignore-eos", is_flag=True, help="Generate past the natural end (SGLang, vLLM); misstates acceptance.")
@click.option("--api", type=click.Choice(["chat", "completions"]), default="chat", help="Which API is asked.")
@click.option("--api-key", metavar="SOURCE", help="Where the key is: env:NAME or file:PATH.")
@click.option("--engine", type=click.Choice(["auto", "sglang", "vllm", "none"]), default="auto", help="Whose counters to read.")
@click.option("--flush", is_flag=True, help="Empty the server's prefix cache before every point.")
@click.option("--seed", type=click.IntRange(min=0, max=2**31 - 1), default=0, help="Of prompts and arrivals.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the results.  [default: bench/LABEL-TIME]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option(
    "--metrics", is_flag=True, is_eager=True, expose_value=False, callback=_print_metrics, help="Print every metric's definition."
)
@click.pass_context
def bench(
    context: click.Context,
    url: str,
    *,
    model: str | None,
    label: str | None,
    contexts: tuple[int, ...],
    concurrency: tuple[int, ...],
    rate: tuple[float, ...] | None,
    fixed_rate: tuple[float, ...] | None,
    prompts: Path | None,
    replay: Path | None,
    keep_prefixes: bool,
    domains: str,
    output_tokens: int,
    window: float,
    max_window: float | None,
    precision: float | None,
    warmup: float,
    max_in_flight: int,
    request_timeout: float,
    temperature: float,
    top_p: float,
    ignore_eos: bool,
    api: str,
    api_key: str | None,
    engine: Literal["auto", "none", "sglang", "vllm"],
    flush: bool,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> int:
    """Measure the OpenAI-compatible endpoint at URL, like http://127.0.0.1:8000.

    Without a rate, so many requests are kept in flight (closed loop); with one, they are sent when they are due, and their times count from
    then (open loop). Ctrl-C once writes what was measured and ends with 130. Ends with 1 when a point has no answer at all.
    """
    from autotuner.bench.endpoint import CHAT, TEXT, open_endpoint
    from autotuner.bench.floor import read_floor
    from autotuner.bench.plan import BenchPlan, points_of
    from autotuner.loadgen.cells import CellPlan
    from autotuner.model.workload import Sampling

    kind = _kind(context, rate=rate, fixed_rate=fixed_rate, prompts=prompts, replay=replay, keep_prefixes=keep_prefixes)
    asked = _asked(prompts, replay, domains=domains, nonce=not keep_prefixes, seed=seed)
    cell_plan = CellPlan(
        window_s=window, warmup_s=warmup, request_timeout_s=request_timeout, seed=seed, max_window_s=max_window, precision=precision
    )
    points = points_of(
        cell_plan,
        prompts=asked,
        contexts=contexts,
        concurrency=concurrency,
        rates=rate or fixed_rate or (),
        kind=kind,
        output_tokens=output_tokens,
        max_in_flight=max_in_flight,
    )
    endpoint, control = open_endpoint(url, model=model, api_key=api_key, engine=engine, path=CHAT if api == "chat" else TEXT)
    sampling = Sampling(temperature=temperature, top_p=top_p, ignore_eos=ignore_eos)
    floor = read_floor(context.obj.state_dir)
    plan = BenchPlan(
        points=points,
        prompts=asked,
        sampling=sampling,
        label=label or endpoint.model,
        flush=flush,
        load_floor=None if floor is None else floor.sentence,
    )
    with control:
        endpoint.check_room(plan.contexts, output_tokens)
        return _run(plan, endpoint, control, out=out or _folder(plan.label), as_json=as_json)


def _kind(
    context: click.Context,
    *,
    rate: tuple[float, ...] | None,
    fixed_rate: tuple[float, ...] | None,
    prompts: Path | None,
    replay: Path | None,
    keep_prefixes: bool,
) -> Literal["poisson", "fixed", "replay"] | None:
    """How requests arrive; ``None`` in a closed loop. Raises ``UsageError`` for options that exclude each other."""
    given = [name for name, value in (("--rate", rate), ("--fixed-rate", fixed_rate), ("--replay", replay)) if value]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other", hint="a request can arrive in one way only")
    if prompts is not None and replay is not None:
        raise UsageError("--prompts and --replay exclude each other", hint="a log brings its own prompts along")
    named = {name for name in ("contexts", "concurrency", "domains") if context.get_parameter_source(name) is not ParameterSource.DEFAULT}
    if given and "concurrency" in named:
        raise UsageError(f"--concurrency and {given[0]} exclude each other", hint="--max-in-flight limits an open loop")
    own = "--prompts" if prompts is not None else "--replay" if replay is not None else None
    if own and named & {"contexts", "domains"}:
        raise UsageError(f"{own} brings its own prompts: --contexts and --domains have no say", hint="leave them out")
    if keep_prefixes and own is None:
        raise UsageError("--keep-prefixes is about own prompts", hint="give them with --prompts or --replay")
    return "poisson" if rate else "fixed" if fixed_rate else "replay" if replay else None


def _asked(prompts: Path | None, replay: Path | None, *, domains: str, nonce: bool, seed: int) -> PromptSource | UserPrompts:
    from autotuner.loadgen.prompts import PromptSource
    from autotuner.loadgen.userprompts import load_prompts, load_replay
    from autotuner.model.workload import Domain

    if prompts is not None:
        return load_prompts(prompts, nonce=nonce, seed=seed)
    if replay is not None:
        return load_replay(replay, nonce=nonce, seed=seed)
    kinds = {name: name for name in get_args(Domain)}
    wanted = [name.strip() for name in domains.split(",")]
    unknown = [name for name in wanted if name not in kinds]
    if unknown:
        raise UsageError(f"`{unknown[0]}` is no kind of prompt", hint=f"choose of {', '.join(kinds)}")
    return PromptSource(tuple(dict.fromkeys(kinds[name] for name in wanted)), seed)


def _folder(label: str) -> Path:
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", label.rsplit("/", 1)[-1]).strip("-.")[:60] or "endpoint"
    return Path("bench") / f"{slug}-{dt.datetime.now(dt.UTC).astimezone():%Y%m%d-%H%M%S}"


def _run(plan: BenchPlan, endpoint: Endpoint, control: ControlClient, *, out: Path, as_json: bool) -> int:
    from autotuner.bench.results import ResultFolder, result_object
    from autotuner.bench.session import run_bench, size_prompts
    from autotuner.cli.bench_text import headline, table

    started = dt.datetime.now(dt.UTC)
    folder = ResultFolder(out)
    _say(headline(endpoint, plan.label))
    cells: list[BenchCell] = []
    interrupted = False
    plan = size_prompts(plan, endpoint)
    folder.make()
    with _ctrl_c() as stop:
        try:
            for cell in run_bench(plan, endpoint, control, should_stop=lambda: bool(stop)):
                cells.append(cell)
                folder.write_requests(cell)
                folder.write_result(result_object(plan, endpoint, cells, started=started, interrupted=len(cells) < len(plan.points)), cells)
                _say(f"{len(cells)} of {len(plan.points)}: {cell.point.key}, {cell.elapsed_s:.0f} s")
        except Interrupted:
            interrupted = True
        found = result_object(plan, endpoint, cells, started=started, interrupted=interrupted)
        folder.write_result(found, cells)
    click.echo(json.dumps(found, indent=2, ensure_ascii=False) if as_json else table(cells) if cells else "nothing was measured")
    _say(f"written to {out}")
    if interrupted:
        return Interrupted.exit_code
    return 0 if all(cell.answered for cell in cells) else 1


@contextlib.contextmanager
def _ctrl_c() -> Iterator[list[int]]:
    """Signals that came: the first one lets what was measured be written, the second ends at once."""
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)
        _say("stopping; what was measured is written (again: stop at once)")

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    click.echo(text, err=True)
