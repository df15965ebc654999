"""Night: one run on one host, from documents to recommendations, with the host as it was at the end."""

from __future__ import annotations

import getpass
import json
import os
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autotuner import disk
from autotuner.decide.recommend import Case, recommend, why_nothing
from autotuner.deploy import HostSession
from autotuner.discover import examine
from autotuner.documents import write
from autotuner.engines.base import Engine
from autotuner.engines.registry import engine_for
from autotuner.errors import Refused, UsageError
from autotuner.loadgen.cells import CellPlan
from autotuner.model.configuration import Configuration
from autotuner.model.events import Listener, Notice, StudyOpened
from autotuner.model.facts import HostFacts
from autotuner.model.host import Host
from autotuner.model.recommendation import Check, Recommendation
from autotuner.model.space import SearchSpace
from autotuner.model.workload import Cell, Workload, builtin_workloads, matrix
from autotuner.quality.gate import AnswerGate, Gate, NotChecked
from autotuner.quality.probe import find_sandbox
from autotuner.records import RecordStore, StudyMeta
from autotuner.runner import Runner
from autotuner.services.registry import manager_for
from autotuner.transports.base import Transport
from autotuner.transports.registry import transport_for
from autotuner.tuner.matrix import jobs_for
from autotuner.tuner.opening import locate, open_study, study_name
from autotuner.tuner.stop import StopRequest
from autotuner.tuner.tuner import Budget, Tuner

_BEFORE = "host-before.json"
"""In the study's folder: what the host of the latest run was like before anything was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NightPlan:
    """What a person asked for."""

    host: Host
    space: SearchSpace
    workloads: tuple[str | Workload, ...]
    """Names of built-in workloads, and others as documents; empty: the three that are built in."""
    contexts: tuple[int, ...]
    concurrency: tuple[int, ...]
    output_tokens: int
    cell_plan: CellPlan
    budget: Budget
    seconds: float | None
    """How long the run may take; ``None`` for no limit."""
    state: Path
    recommendations: Path
    contexts_asked: bool = False
    """A person named the contexts: one that does not fit is an error then; else it is left out."""
    new_study: bool = False
    seed: int = 0
    quality: bool = True
    """Whether answers are compared with those of the baseline without speculation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One recommendation, and where it was written."""

    path: Path
    document: Recommendation


@dataclass(frozen=True, slots=True, kw_only=True)
class NightResult:
    """What a run came to."""

    study: str
    written: tuple[Written, ...]
    without: Mapping[str, str]
    """Workloads that have no recommendation, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """A host that was reached and looked over."""

    transport: Transport
    engine: Engine
    facts: HostFacts
    workloads: tuple[Workload, ...]
    cells: tuple[Cell, ...]
    told: frozenset[str]
    """Warnings about the host that were told already."""


@contextmanager
def reach(plan: NightPlan, listener: Listener) -> Iterator[Surroundings]:
    """Reach the host, discover it, and refuse it when something would keep it from being tuned. Nothing on it is changed."""
    if plan.space.engine != plan.host.engine.name:
        raise UsageError(
            f"space {plan.space.name} is for {plan.space.engine}, but {plan.host.name} serves with {plan.host.engine.name}",
            hint="choose another --space",
        )
    folder = plan.recommendations / plan.host.name
    with disk.refusals("write into", folder, then="--recommendations names another folder"):
        disk.probe(folder)  # a night must not end with nowhere to write what it found
    engine, transport = engine_for(plan.host), transport_for(plan.host)
    try:
        found, checks = examine(plan.host, engine, transport, space=plan.space)
        if sum(check.status == "fail" for check in checks) > len(found.errors):
            raise _unfit(plan.host, checks)
        facts = found.complete()
        warnings = list(dict.fromkeys(check.detail for check in checks if check.status == "warning"))
        for text in warnings:
            listener(Notice(level="warning", message=text))
        workloads, cells = _what_to_measure(plan, facts)
        jobs_for(workloads, cells, seed=plan.seed)
        yield Surroundings(transport=transport, engine=engine, facts=facts, workloads=workloads, cells=cells, told=frozenset(warnings))
    finally:
        transport.close()


def run_night(plan: NightPlan, *, listener: Listener, stop: StopRequest, clock: Callable[[], float]) -> NightResult:
    """Tune the host and write its recommendations.

    Raises what ends a run: ``Interrupted``, ``Refused``, ``StopStudy``, ``NothingFeasible``, ``NotRestored``. Whatever is raised, the host
    has been restored first, or ``NotRestored`` says that it could not be.
    """
    deadline = None if plan.seconds is None else clock() + plan.seconds
    with reach(plan, listener) as there:
        store = locate(plan.state, study_name(plan.host, plan.space), new=plan.new_study)
        store.read_meta()  # a newer schema is refused before anything on the host is touched
        holder = f"{getpass.getuser()}@{socket.gethostname()} (pid {os.getpid()})"
        session = HostSession(
            plan.host,
            there.engine,
            there.transport,
            manager_for(plan.host, there.transport),
            holder=holder,
            purpose=f"tune {store.folder.name}",
            on_notice=lambda text: _tell(listener, text, told={f"{plan.host.name}: {told}" for told in there.told}),
            ttl_s=plan.host.limits.lease_ttl_s,
        )
        with store.lock(holder), session:
            study, meta, resumed = open_study(
                store, host=plan.host, space=plan.space, facts=there.facts, workloads=there.workloads, seed=plan.seed
            )
            _keep(session, store)
            for text in store.read().warnings:
                listener(Notice(level="warning", message=text))
            runner = Runner(
                session=session,
                engine=there.engine,
                host=plan.host,
                facts=there.facts,
                space=plan.space,
                store=store,
                plan=plan.cell_plan,
                listener=listener,
                gate=_gate(plan, store, listener),
            )
            tuner = Tuner(
                study=study,
                runner=runner,
                facts=there.facts,
                cells=there.cells,
                live=_live(plan.host, there.engine, session, listener),
                budget=plan.budget,
                stop=stop,
                listener=listener,
                clock=clock,
                deadline_s=deadline,
                seed=plan.seed,
            )
            listener(
                StudyOpened(
                    study=meta.study,
                    resumed=resumed,
                    trials=len(study.records),
                    workloads=tuple(workload.name for workload in there.workloads),
                    simulated=meta.simulated,
                    best=tuner.best(),
                    infeasible=tuner.infeasible,
                )
            )
            tuner.run()
            # Written before the session ends: a host that cannot be restored must not cost the night's result as well.
            return conclude(
                plan.host,
                space=plan.space,
                store=store,
                meta=meta,
                engine=there.engine,
                baseline=tuner.baseline,
                folder=plan.recommendations,
            )


def _gate(plan: NightPlan, store: RecordStore, listener: Listener) -> Gate:
    """What judges the answers. Without a sandbox that is said aloud, and code is not run."""
    if not plan.quality:
        return NotChecked("switched off by --quality off")
    if plan.host.simulate is not None:
        return NotChecked("a simulated engine has no model behind it")
    found = find_sandbox((plan.state.absolute(),))
    if found.sandbox is None:
        text = f"QUALITY NOT CHECKED: generated code cannot be run safely on this machine ({'; '.join(found.reasons)}), so it is not run"
        listener(Notice(level="warning", message=f"{text}; install bubblewrap (apt-get install bubblewrap)"))
    return AnswerGate(folder=store.quality, model=plan.host.model.path, sandbox=found)


def _tell(listener: Listener, text: str, *, told: Collection[str]) -> None:
    """Pass a notice of the session on, unless it was told before the session began."""
    if text not in told:
        listener(Notice(level="warning", message=text))


def _keep(session: HostSession, store: RecordStore) -> None:
    """What the host was like, on this side as well: a host that is gone for good can still be set up again."""
    path = store.folder / _BEFORE
    with disk.refusals("write", path):
        disk.replace(path, json.dumps(session.snapshot, indent=1).encode(), mode=0o600)


def _live(host: Host, engine: Engine, session: HostSession, listener: Listener) -> Configuration | None:
    """What serves today as a configuration; ``None`` when nothing does."""
    if session.production is None:
        return None
    if host.model.path not in session.production.argv:
        text = (
            f"what serves on {host.name} names another model than its file ({host.model.path}): trial 0 has its flags with the file's model"
        )
        listener(Notice(level="warning", message=text))
    return engine.read_argv(session.production.argv, host=host)


def conclude(
    host: Host, *, space: SearchSpace | None, store: RecordStore, meta: StudyMeta, engine: Engine, baseline: Configuration, folder: Path
) -> NightResult:
    """Write what the study recommends."""
    documents = recommendations(host, space=space, store=store, meta=meta, engine=engine, baseline=baseline)
    written = []
    for workload in meta.workloads:
        document = documents.get(workload.name)
        if document is not None:
            path = folder / host.name / f"{workload.name}.yaml"
            write(document, path)
            written.append(Written(path=path, document=document))
    trials = store.trials()
    missing = {workload.name: why_nothing(workload, trials) for workload in meta.workloads if workload.name not in documents}
    return NightResult(study=meta.study, written=tuple(written), without=missing)


def recommendations(
    host: Host, *, space: SearchSpace | None, store: RecordStore, meta: StudyMeta, engine: Engine, baseline: Configuration
) -> dict[str, Recommendation]:
    """Workload → recommendation, from the records alone."""
    case = Case(
        host=host,
        study=meta.study,
        tool=meta.tool,
        driver=meta.driver,
        fingerprint=meta.digest,
        fingerprint_fields=meta.fingerprint,
        facts=meta.facts,
        simulated=meta.simulated,
        trials=store.trials(),
        baseline=baseline,
        space=space,
        measuring_flags=engine.measuring_flags,
        load_floor=meta.load_floor,
    )
    found = {workload.name: recommend(workload, case) for workload in meta.workloads}
    return {name: document for name, document in found.items() if document is not None}


def _what_to_measure(plan: NightPlan, facts: HostFacts) -> tuple[tuple[Workload, ...], tuple[Cell, ...]]:
    served = facts.context_served or max(plan.contexts) + plan.output_tokens
    _refuse_unserved(plan, served)
    builtin = builtin_workloads(
        context_served=served, contexts=plan.contexts, concurrency=plan.concurrency, output_tokens=plan.output_tokens
    )
    by_name = {workload.name: workload for workload in builtin}
    workloads = tuple(by_name[item] if isinstance(item, str) else item for item in plan.workloads) or builtin
    too_long = [
        f"{workload.name} ({cell})" for workload in workloads for cell in workload.cells if cell.context + cell.output_tokens > served
    ]
    if too_long:
        raise UsageError(
            f"{', '.join(too_long)}: longer than the {served} tokens that {plan.host.name} serves",
            hint="shorten the cells, or raise `context_length` in the host file",
        )
    cells = matrix(workloads, context_served=served, contexts=plan.contexts, concurrency=plan.concurrency, output_tokens=plan.output_tokens)
    return workloads, cells


def _refuse_unserved(plan: NightPlan, served: int) -> None:
    """Name what was asked for and does not fit, rather than to measure something else. Raises ``UsageError``."""
    limit = f"{plan.host.name} serves {served} tokens, prompt and answer together"
    builtin = not plan.workloads or any(isinstance(item, str) for item in plan.workloads)
    if builtin and plan.output_tokens >= served:
        raise UsageError(f"--output-tokens {plan.output_tokens} does not fit: {limit}", hint=f"give less than {served}")
    longest = served - plan.output_tokens
    unserved = [str(context) for context in plan.contexts if context > longest]
    if plan.contexts_asked and unserved:
        hint = f"give contexts of at most {longest}, or fewer --output-tokens" if longest > 0 else f"give --output-tokens below {served}"
        raise UsageError(f"--contexts {','.join(unserved)} with --output-tokens {plan.output_tokens} does not fit: {limit}", hint=hint)


def _unfit(host: Host, checks: Sequence[Check]) -> Refused:
    failed = [check for check in checks if check.status == "fail"]
    details = "; ".join(check.detail for check in failed)
    hints = [check.hint for check in failed if check.hint]
    return Refused(
        f"{host.name} cannot be tuned as it is: {details}",
        hint=hints[0] if len(failed) == 1 and hints else f"`autotuner doctor {host.name}` shows each with its remedy",
    )
