"""The ``status`` and ``trials`` commands: what the studies hold. They read the records only, so they answer while a run goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotuner.cli.options import Options
from autotuner.errors import UsageError

if TYPE_CHECKING:
    from autotuner.model.trial import TrialRecord
    from autotuner.records import RecordStore, StudyMeta


@click.command(short_help="Show the studies, how far they are and where their files lie.")
@click.argument("host", required=False)
@click.option("--paths", is_flag=True, help="Show where each study's files lie.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@click.pass_obj
def status(options: Options, host: str | None, *, paths: bool, as_json: bool) -> int:
    """Show the studies, of HOST only when it is given: how far they are and where their files lie."""
    rows = [_row(store, meta) for store, meta in found_studies(options.state_dir, host)]
    if as_json:
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
    elif not rows:
        click.echo(f"no studies under {options.state_dir}" + (f" for {host}" if host else ""), err=True)
    for row in [] if as_json else rows:
        click.echo(_row_text(row, paths=paths))
    return 0


@click.command(short_help="List the trials of a study.")
@click.argument("study")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per trial, cells and failures included.")
@click.pass_obj
def trials(options: Options, study: str, *, as_json: bool) -> int:
    """List the trials of STUDY: its name, or the name of a host for the host's newest study."""
    store, meta = pick_study(options.state_dir, study)
    records = store.trials()
    if as_json:
        for record in records:
            click.echo(json.dumps(_trial_json(record, meta), ensure_ascii=False))
        return 0
    for line in _table(records, meta):
        click.echo(line)
    return 0


def found_studies(state: Path, host: str | None = None) -> list[tuple[RecordStore, StudyMeta]]:
    """Studies under a state folder, oldest first, of one host when it is named (a path to its file will do)."""
    from autotuner.records import studies

    wanted = Path(host).stem if host else None
    known = [(store, store.read_meta()) for store in studies(state)]
    return [(store, meta) for store, meta in known if meta is not None and wanted in (None, meta.host)]


def pick_study(state: Path, name: str) -> tuple[RecordStore, StudyMeta]:
    """A study by its own name, else the newest of a host. Raises ``UsageError``."""
    known = found_studies(state)
    by_name = [(store, meta) for store, meta in known if name == meta.study]
    by_host = [(store, meta) for store, meta in known if Path(name).stem == meta.host]
    if not by_name and not by_host:
        names = ", ".join(sorted({meta.study for _, meta in known})) or "none"
        raise UsageError(
            f"no study named `{name}` and none of a host of that name under {state} (there: {names})", hint="`autotuner status` lists them"
        )
    return (by_name or by_host)[-1]


def _row(store: RecordStore, meta: StudyMeta) -> dict[str, object]:
    from autotuner.model.events import Phase

    records = store.trials()
    return {
        "study": meta.study,
        "host": meta.host,
        "model": meta.model,
        "space": meta.space,
        "simulated": meta.simulated,
        "fingerprint": meta.digest,
        "trials": len(records),
        "measured": sum(record.measured for record in records),
        "infeasible": sum(record.outcome == "infeasible" for record in records),
        "confirmations": sum(record.phase is Phase.CONFIRM for record in records),
        "best": _best(records, meta),
        "started": meta.created,
        "latest": records[-1].started if records else None,
        "paths": {
            "folder": str(store.folder),
            "database": str(store.database),
            "results": str(store.folder / "results.jsonl"),
            "requests": str(store.folder / "trials"),
        },
    }


def _best(records: Sequence[TrialRecord], meta: StudyMeta) -> dict[str, object]:
    from autotuner.decide.finalists import best_measured
    from autotuner.decide.objective import workload_value

    found: dict[str, object] = {}
    for workload in meta.workloads:
        leader = best_measured(workload, records)
        if leader is not None:
            found[workload.name] = {
                "trial": leader.number,
                "metric": workload.objective,
                "value": workload_value(workload, leader.cells),
                "parameters": dict(leader.config),
            }
    return found


def _row_text(row: Mapping[str, object], *, paths: bool) -> str:
    from autotuner.model.measurement import METRICS

    mark = " (simulated)" if row["simulated"] else ""
    lines = [f"{row['study']}{mark}: {row['trials']} launches, {row['infeasible']} infeasible, {row['confirmations']} of them to confirm"]
    best: Mapping[str, Mapping[str, object]] = row["best"]  # type: ignore[assignment]
    for name, leader in best.items():
        value = METRICS[str(leader["metric"])].format(leader["value"])  # type: ignore[arg-type]
        lines.append(f"  best {name}: {value} (trial {leader['trial']})")
    if paths:
        where: Mapping[str, str] = row["paths"]  # type: ignore[assignment]
        lines += [f"  {name}: {path}" for name, path in where.items()]
    return "\n".join(lines)


def _trial_json(record: TrialRecord, meta: StudyMeta) -> dict[str, object]:
    from autotuner.decide.objective import workload_value
    from autotuner.records import trial_json

    values = {workload.name: workload_value(workload, record.cells) for workload in meta.workloads} if record.measured else {}
    return {**trial_json(record), "values": values, "simulated": meta.simulated}


def _table(records: Sequence[TrialRecord], meta: StudyMeta) -> list[str]:
    from autotuner.decide.objective import workload_value
    from autotuner.model.measurement import METRICS

    lines = []
    for record in records:
        head = f"{record.number:>3} {record.phase:<9} {record.config}"
        if record.measured:
            values = [(workload, workload_value(workload, record.cells)) for workload in meta.workloads]
            tail = ", ".join(
                f"{workload.name} {METRICS[workload.objective].format(value)}" for workload, value in values if value is not None
            )
        else:
            tail = f"{record.outcome}: {record.failure.cause if record.failure else ''}"
        lines.append(f"{head} – {tail or 'no value'}" + (" (simulated)" if meta.simulated else ""))
    return lines
