"""The ``tune`` command: the night itself."""

from __future__ import annotations

import datetime as dt
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from autotuner.cli.options import JsonEventsCommand, Numbers, Options, Seconds
from autotuner.errors import AutotunerError, NothingFeasible

if TYPE_CHECKING:
    from autotuner.tuner.night import NightPlan

_DEFAULT_TRIALS = 60
_MOST_TOKENS = 100_000_000
"""Beyond every model; what the host serves is told from it once it is known."""
_MOST_CONCURRENT = 4096
"""As in a workload's cells."""


@click.command(cls=JsonEventsCommand, short_help="Search a host for its best configurations and write the recommendations.")
@click.argument("host")
@click.option("--space", required=True, help="Search space: a name or a file.")
@click.option(
    "--workload", "workloads", multiple=True, help="Workload to tune for, a name or a file; may be given again.  [default: all three]"
)
@click.option(
    "--trials",
    type=click.IntRange(min=1, max=100_000),
    help=f"Launches, confirmation not counted.  [default: {_DEFAULT_TRIALS} without a time]",
)
@click.option("--until", metavar="HH:MM", help="Be done by this time of day, confirmation included.")
@click.option("--budget", metavar="DURATION", help="Be done after this long, like 9h or 1h30m.")
@click.option("--confirm-rounds", type=click.IntRange(min=0, max=1000), default=4, help="Interleaved launches of baseline and finalists.")
@click.option("--contexts", default="60,1024,4096", type=Numbers(_MOST_TOKENS), help="Prompt lengths of the matrix, in tokens.")
@click.option("--concurrency", default="1,8,32,64,128", type=Numbers(_MOST_CONCURRENT), help="Requests in flight of the matrix.")
@click.option("--output-tokens", type=click.IntRange(min=1, max=_MOST_TOKENS), default=512, help="Longest answer, in tokens.")
@click.option("--window", type=Seconds(0.1, 3600), default=4.0, help="Steady window per cell, in seconds.")
@click.option("--warmup", type=Seconds(0, 3600), default=1.5, help="Warm-up per cell at its concurrency, in seconds.")
@click.option(
    "--recommendations", type=click.Path(file_okay=False, path_type=Path), default=Path("recommendations"), help="Folder to write into."
)
@click.option(
    "--quality",
    type=click.Choice(("on", "off")),
    default="on",
    help="Compare answers with those of the baseline without speculation; what falls behind is infeasible.",
)
@click.option("--new-study", is_flag=True, help="Start over beside an older study of this host, model and space.")
@click.option("--seed", type=click.IntRange(min=0, max=2**31 - 1), default=0, help="Of the search and of the prompts.")
@click.option("--dry-run", is_flag=True, help="Print the first command lines and the plan with its hours; start nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per event on standard error, the result on standard output.")
@click.pass_context
def tune(
    context: click.Context,
    host: str,
    *,
    space: str,
    workloads: tuple[str, ...],
    trials: int | None,
    until: str | None,
    budget: str | None,
    confirm_rounds: int,
    contexts: tuple[int, ...],
    concurrency: tuple[int, ...],
    output_tokens: int,
    window: float,
    warmup: float,
    recommendations: Path,
    quality: str,
    new_study: bool,
    seed: int,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Search HOST for its best configurations and write the recommendations.

    HOST is a name (`hosts/NAME.yaml`) or a path. The same command continues where an earlier one stopped. Ctrl-C once finishes the
    measurement, twice stops at once; what served before is started again in every case.
    """
    from autotuner.documents import load_host, load_space, load_workload
    from autotuner.loadgen.cells import CellPlan
    from autotuner.loadgen.validity import relaxed
    from autotuner.model.workload import BUILTIN_WORKLOADS
    from autotuner.tuner.night import NightPlan
    from autotuner.tuner.times import run_seconds
    from autotuner.tuner.tuner import Budget

    options: Options = context.obj
    target = load_host(host)
    options.errors.simulated = target.simulate is not None
    measuring = CellPlan(window_s=window, warmup_s=warmup, request_timeout_s=target.limits.request_timeout_s, seed=seed)
    seconds = run_seconds(target, until=until, budget=budget, now_utc=dt.datetime.now(dt.UTC))
    plan = NightPlan(
        host=target,
        space=load_space(space),
        workloads=tuple(name if name in BUILTIN_WORKLOADS else load_workload(name) for name in workloads),
        contexts=contexts,
        concurrency=concurrency,
        output_tokens=output_tokens,
        cell_plan=measuring if target.simulate is None else relaxed(measuring),
        budget=Budget(trials=trials if trials or seconds is not None else _DEFAULT_TRIALS, confirm_rounds=confirm_rounds),
        seconds=seconds,
        state=options.state_dir,
        recommendations=recommendations,
        contexts_asked=context.get_parameter_source("contexts") is not ParameterSource.DEFAULT,
        new_study=new_study,
        seed=seed,
        quality=quality == "on",
    )
    return _dry_run(plan, as_json=as_json) if dry_run else _run(plan, color=options.color, as_json=as_json)


def _run(plan: NightPlan, *, color: bool, as_json: bool) -> int:
    from autotuner.cli.console import listener
    from autotuner.cli.summary import summary, summary_json
    from autotuner.tuner.night import run_night
    from autotuner.tuner.stop import StopRequest, on_signals

    stop = StopRequest()
    simulated = plan.host.simulate is not None
    shown = listener(sys.stderr, json=as_json, tty=sys.stderr.isatty(), color=color, metrics=_metrics(plan), simulated=simulated)
    with shown as watch, on_signals(stop, _say):
        result = run_night(plan, listener=watch, stop=stop, clock=time.monotonic)
    text = json.dumps(summary_json(result), indent=2, ensure_ascii=False) if as_json else summary(result)
    _print(text, hint=f"the run is done, and its recommendations are written: autotuner recommend {plan.host.name} prints them")
    return 0 if result.written else NothingFeasible.exit_code


def _dry_run(plan: NightPlan, *, as_json: bool) -> int:
    from autotuner.cli.console import listener
    from autotuner.cli.summary import preview_json, preview_text
    from autotuner.tuner.preview import preview

    with listener(sys.stderr, json=as_json, tty=False, simulated=plan.host.simulate is not None) as watch:
        seen = preview(plan, listener=watch)
    _print(json.dumps(preview_json(seen), indent=2, ensure_ascii=False) if as_json else preview_text(seen), hint="nothing was started")
    return 0


def _print(text: str, *, hint: str) -> None:
    """Print what a command came to. Raises ``AutotunerError`` when nobody reads it: after a night that is worth a word."""
    try:
        click.echo(text)
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise AutotunerError("standard output was closed before the result was printed", hint=hint) from error


def _metrics(plan: NightPlan) -> dict[str, str]:
    from autotuner.model.workload import builtin_workloads

    own = [workload for workload in plan.workloads if not isinstance(workload, str)]
    return {workload.name: workload.objective for workload in (*builtin_workloads(context_served=sys.maxsize), *own)}


def _say(text: str) -> None:
    click.echo(text, err=True)
