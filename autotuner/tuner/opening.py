"""Opening a study: found by (host or group, model, search space); refused when its trials would not be comparable."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from pathlib import Path

import autotuner
from autotuner.bench.floor import read_floor
from autotuner.errors import Refused
from autotuner.model.facts import Fingerprint, HostFacts
from autotuner.model.host import Host
from autotuner.model.space import SearchSpace
from autotuner.model.workload import Workload
from autotuner.records import RecordStore, StudyMeta
from autotuner.study.study import Study, space_digest


def study_name(host: Host, space: SearchSpace) -> str:
    """``HOST--MODEL--SPACE``, as it stands in paths."""
    model = re.sub(r"[^a-z0-9.]+", "-", Path(host.model.path).name.lower()).strip("-.") or "model"
    return f"{host.study_group}--{model}--{space.name}"


def locate(state: Path, name: str, *, new: bool = False) -> RecordStore:
    """The newest study of this name, or with ``new`` the place of the next one (``NAME``, ``NAME.2``, ``NAME.3`` …)."""
    folder = state / "studies"
    number = 1
    while RecordStore(folder / _numbered(name, number)).present:
        number += 1
    return RecordStore(folder / _numbered(name, number if new else max(1, number - 1)))


def open_study(
    store: RecordStore, *, host: Host, space: SearchSpace, facts: HostFacts, workloads: tuple[Workload, ...], seed: int
) -> tuple[Study, StudyMeta, bool]:
    """Open or begin the study in ``store``; the third value says whether it was there.

    Raises ``Refused`` (exit 4) when the fingerprint or the search space is another one than the study's.
    """
    found = store.read_meta()
    fingerprint = facts.fingerprint
    digest = space_digest(space)
    document = host.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    floor = read_floor(store.folder.parent.parent)
    load_floor = None if floor is None else floor.sentence
    if found is not None:
        _refuse_incomparable(found, fingerprint, digest, store)
        meta = replace(found, workloads=workloads, facts=facts.names(), driver=facts.driver, host_document=document, load_floor=load_floor)
    else:
        meta = StudyMeta(
            study=store.folder.name,
            host=host.name,
            model=host.model.path,
            space=space.name,
            space_digest=digest,
            fingerprint=fingerprint.as_dict(),
            driver=facts.driver,
            facts=facts.names(),
            simulated=facts.simulated,
            created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            tool=f"autotuner {autotuner.__version__}",
            workloads=workloads,
            host_document=document,
            load_floor=load_floor,
        )
    store.write_meta(meta)
    return Study(store, space=space, facts=facts.names(), workloads=workloads, seed=seed), meta, found is not None


def _refuse_incomparable(meta: StudyMeta, fingerprint: Fingerprint, digest: str, store: RecordStore) -> None:
    hint = "start a study of its own with --new-study; the old one is kept"
    now = fingerprint.as_dict()
    different = [f"{key} was {was}, is {now.get(key)}" for key, was in meta.fingerprint.items() if now.get(key) != was]
    if different:
        raise Refused(f"study {meta.study}: the host is not the one that was measured: {'; '.join(different)}", hint=hint)
    if meta.space_digest != digest:
        raise Refused(f"study {meta.study}: the search space {meta.space} has changed since ({store.folder})", hint=hint)


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}.{number}"
