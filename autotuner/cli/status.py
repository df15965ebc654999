"""The ``status`` and ``trials`` commands: what the studies hold. They read the records, so they answer while a run goes on.

``status HOST`` also asks the host who tunes it now, after everything that the records say was shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotuner.cli.options import Options
from autotuner.errors import AutotunerError, UsageError

if TYPE_CHECKING:
    from autotuner.deploy.people import Holder
    from autotuner.model.trial import TrialRecord
    from autotuner.records import Reading, RecordStore, StudyMeta


@click.command(short_help="Show the studies, how far they are and where their files lie.")
@click.argument("host", required=False)
@click.option("--paths", is_flag=True, help="Show where each study's files lie.")
@click.option("--offline", is_flag=True, help="Do not ask HOST who tunes it now.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@click.pass_obj
def status(options: Options, host: str | None, *, paths: bool, offline: bool, as_json: bool) -> int:
    """Show the studies, of HOST only when it is given: how far they are and where their files lie.

    HOST is a name or a path. Where it names a host document the host is asked who tunes it, for what, and until when the lease holds; one
    that cannot be reached is a line, not an error.
    """
    found = known_studies(options.state_dir)
    rows = [_row(study) for study in found if study.error is None and (host is None or study.of_host(host))]
    broken = [study for study in found if study.error is not None]
    if broken and not rows and (host is None or any(study.of_host(host) for study in broken)):
        report_damage(study for study in found if study is not broken[0])
        raise broken[0].problem
    report_damage(found)
    if as_json:
        lease = {} if host is None or offline else lease_json(host)
        click.echo(json.dumps([row | lease for row in rows], indent=2, ensure_ascii=False))
        return 0
    if not rows:
        click.echo(f"no studies under {options.state_dir}" + (f" for {host}" if host else ""), err=True)
    for row in rows:
        click.echo(_row_text(row, paths=paths))
    line = None if host is None or offline else lease_line(host)
    if line is not None:
        click.echo(line)
    return 0


def lease_line(name: str) -> str | None:
    """Who tunes the host that a document of this name describes, in words; ``None`` when there is no such document."""
    from autotuner.cli.service import for_host, holder_text

    try:
        asked = _ask_lease(name)
    except AutotunerError as error:
        hint = for_host(error.hint, name)
        return f"{Path(name).stem} now: cannot be asked: {error.message}" + (f" (hint: {hint})" if hint else "")
    return None if asked is None else f"{asked.host} now: {holder_text(asked.holder)}"


def lease_json(name: str) -> dict[str, object]:
    """``{"lease": …}``: who tunes the host, null when nobody does, or why it cannot be asked; empty when there is no such document."""
    from autotuner.cli.service import for_host, holder_json

    try:
        asked = _ask_lease(name)
    except AutotunerError as error:
        return {"lease": {"error": error.message, "hint": for_host(error.hint, name)}}
    return {} if asked is None else {"lease": None if asked.holder is None else holder_json(asked.holder)}


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a host said about its lease."""

    host: str
    holder: Holder | None


def _ask_lease(name: str) -> _Asked | None:
    """Ask the host. ``None`` when no document is called so: a study may be older than its host's file, or be named itself."""
    from autotuner.deploy import people
    from autotuner.documents import find, load_host

    try:
        find("hosts", name)
    except UsageError:
        return None
    host = load_host(name)
    with people.reached(host, looking=True) as host_side:
        return _Asked(host.name, people.holder_of(host, host_side))


@click.command(short_help="List the trials of a study.")
@click.argument("study")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per trial, cells and failures included.")
@click.pass_obj
def trials(options: Options, study: str, *, as_json: bool) -> int:
    """List the trials of STUDY: its name, or the name of a host for the host's newest study."""
    picked = pick_study(options.state_dir, study)
    records, meta = picked.trials, picked.meta
    if as_json:
        for record in records:
            click.echo(json.dumps(_trial_json(record, meta), ensure_ascii=False))
        return 0
    for line in _table(records, meta):
        click.echo(line)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownStudy:
    """A study under the state folder, read as far as it can be."""

    store: RecordStore
    found: StudyMeta | None
    reading: Reading | None
    error: AutotunerError | None = None
    """Why it could not be read."""

    @property
    def name(self) -> str:
        """Also of a study that could not be read."""
        return self.found.study if self.found else self.store.folder.name

    @property
    def problem(self) -> AutotunerError:
        """Why it could not be read, or that it is not one."""
        return self.error or AutotunerError(f"{self.store.folder}: no study")

    @property
    def meta(self) -> StudyMeta:
        """What it is. Raises why it could not be read."""
        if self.found is None or self.error is not None:
            raise self.problem
        return self.found

    @property
    def trials(self) -> tuple[TrialRecord, ...]:
        """Its launches. Raises why they could not be read."""
        if self.reading is None:
            raise self.problem
        return self.reading.trials

    def of_host(self, host: str) -> bool:
        """Whether it is of a host, named or given as a path to its file; of a broken one the folder's name has to say it."""
        stem = Path(host).stem
        return stem == self.found.host if self.found else self.store.folder.name.startswith(f"{stem}--")


def known_studies(state: Path) -> list[KnownStudy]:
    """Studies under a state folder, oldest first, broken ones included."""
    from autotuner.records import studies

    return [_known(store) for store in studies(state)]


def _known(store: RecordStore) -> KnownStudy:
    meta, reading = None, None
    try:
        meta, reading = store.read_meta(), store.read()
    except AutotunerError as error:
        return KnownStudy(store=store, found=meta, reading=reading, error=error)
    return KnownStudy(store=store, found=meta, reading=reading)


def report_damage(found: Iterable[KnownStudy]) -> None:
    """Say on standard error which studies could not be read, and what of the others: one line each."""
    for study in found:
        if study.error is not None:
            click.echo(f"warning: {study.error.message} (hint: {study.error.hint})", err=True)
        elif study.reading is not None:
            for text in study.reading.warnings:
                click.echo(f"warning: {text}", err=True)


def pick_study(state: Path, name: str) -> KnownStudy:
    """A study by its own name, else the newest of a host; what is damaged is told. Raises ``UsageError``, or why it cannot be read."""
    known = known_studies(state)
    chosen = [study for study in known if name == study.name] or [study for study in known if study.of_host(name)]
    if not chosen:
        report_damage(known)
        names = ", ".join(sorted({study.name for study in known})) or "none"
        raise UsageError(
            f"no study named `{name}` and none of a host of that name under {state} (there: {names})", hint="`autotuner status` lists them"
        )
    if chosen[-1].error is not None:
        raise chosen[-1].error
    report_damage([study for study in known if study.error is not None or study is chosen[-1]])
    return chosen[-1]


def _row(study: KnownStudy) -> dict[str, object]:
    from autotuner.model.events import Phase

    store, meta, records = study.store, study.meta, study.trials
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
    from autotuner.cli.lines import counted
    from autotuner.model.measurement import METRICS

    mark = " (simulated)" if row["simulated"] else ""
    launches = counted(int(str(row["trials"])), "launch", "launches")
    lines = [f"{row['study']}{mark}: {launches} so far: {row['infeasible']} infeasible, {row['confirmations']} in confirmation"]
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
