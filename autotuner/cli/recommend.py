"""The ``recommend`` command: what a study recommends, from its records alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotuner.cli.options import Options
from autotuner.errors import NothingFeasible, UsageError

if TYPE_CHECKING:
    from autotuner.cli.status import KnownStudy
    from autotuner.model.host import Host
    from autotuner.records import StudyMeta


@click.command(short_help="Print or write what a study recommends.")
@click.argument("host")
@click.option("--workload", help="Only this workload.")
@click.option("--study", help="A study by name.  [default: the host's newest]")
@click.option(
    "--write", "write_to", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER", help="Write FOLDER/HOST/WORKLOAD.yaml."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of YAML.")
@click.pass_obj
def recommend(options: Options, host: str, *, workload: str | None, study: str | None, write_to: Path | None, as_json: bool) -> int:
    """Print or write what a study of HOST recommends. The host is not contacted, and its file is not needed."""
    from autotuner.cli.summary import recommendation_text
    from autotuner.documents import dump, load_space, write
    from autotuner.engines.registry import engine_for
    from autotuner.model.events import Phase
    from autotuner.tuner.night import recommendations

    picked = _pick(options.state_dir, host, study)
    store, meta = picked.store, picked.meta
    target = _host_of(meta, host)
    baseline = next((record.config for record in reversed(picked.trials) if record.phase is Phase.BASELINE), None)
    if baseline is None:
        raise NothingFeasible(f"study {meta.study} has no baseline yet", hint="run `autotuner tune` first")
    try:
        space = load_space(meta.space)
    except UsageError:
        space = None  # only the check for values at a bound needs it
    found = recommendations(target, space=space, store=store, meta=meta, engine=engine_for(target), baseline=baseline)
    if workload is not None and workload not in {item.name for item in meta.workloads}:
        names = ", ".join(item.name for item in meta.workloads)
        raise UsageError(f"study {meta.study} has no workload `{workload}` (it has {names})", hint="tune for it: `--workload`")
    chosen = {name: document for name, document in found.items() if workload in (None, name)}
    if not chosen:
        raise NothingFeasible(f"study {meta.study} holds no measured configuration for that", hint="`autotuner trials` lists why")
    for name, document in chosen.items():
        if write_to is not None:
            write(document, write_to / target.name / f"{name}.yaml")
        click.echo(recommendation_text(document), err=True)
    if as_json:
        click.echo(json.dumps({name: document.model_dump(mode="json") for name, document in chosen.items()}, indent=2, ensure_ascii=False))
    else:
        click.echo("---\n".join(dump(document) for document in chosen.values()), nl=False)
    return 0


def _pick(state: Path, host: str, study: str | None) -> KnownStudy:
    """The study that was asked for. Where the host has none under the name given, its file says what the host is called."""
    from autotuner.cli.status import known_studies, pick_study
    from autotuner.documents import load_host

    known = any(found.of_host(host) for found in known_studies(state))
    name = Path(host).stem if known else load_host(host).name
    picked = pick_study(state, study or name)
    if not picked.of_host(name):
        raise UsageError(f"study {picked.name} is of {picked.meta.host}, not of {name}", hint="`autotuner status` lists the studies")
    return picked


def _host_of(meta: StudyMeta, given: str) -> Host:
    """The host as the study's latest run saw it; the file for studies that did not keep it, or that another version kept."""
    from pydantic import ValidationError

    from autotuner.documents import load_host
    from autotuner.model.host import Host

    try:
        return Host.model_validate_json(json.dumps(meta.host_document))
    except ValidationError:
        return load_host(given)
