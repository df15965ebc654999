"""RecordStore: what a study measured, on the controller's disk, so that no completed measurement is ever lost.

STATE/studies/ID/meta.json             what the study is: fingerprint, space, workloads, matrix
STATE/studies/ID/results.jsonl         one line per launch, appended and fsynced; the truth
STATE/studies/ID/trials/N/CELL.jsonl.gz   raw request records
STATE/studies/ID/study.db              Optuna's database; derived, can be rebuilt from results.jsonl
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import TypeAdapter, ValidationError

from autotuner import disk
from autotuner.errors import Refused, StopStudy
from autotuner.model.document import Scalar
from autotuner.model.facts import Fingerprint
from autotuner.model.measurement import RequestRecord
from autotuner.model.trial import TrialRecord
from autotuner.model.workload import Workload

SCHEMA = 1
"""Version of everything in a study's folder; a newer one is refused, never guessed at."""

_TRIAL = TypeAdapter(TrialRecord)


def state_dir(given: str | None = None) -> Path:
    """Where studies are kept: ``given``, else ``$STATE_DIRECTORY`` (systemd), else the platform's folder for user state."""
    chosen = given or os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    return Path(chosen) if chosen else platformdirs.user_state_path("autotuner")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyMeta:
    """What a study is: everything that must match before trials may be added to it."""

    study: str
    host: str
    model: str
    space: str
    space_digest: str
    fingerprint: dict[str, Scalar]
    driver: str
    """In full; the fingerprint compares major and minor only."""
    facts: dict[str, Scalar | None]
    """What expressions may name, as discovered at the latest run."""
    simulated: bool
    created: str
    tool: str
    workloads: tuple[Workload, ...]
    """Of the latest run; trials are derived for others from the same cells."""
    host_document: dict[str, Any] | None = None
    """The host file at the latest run, so that recommendations need no other file; studies of the first versions have none."""
    schema: int = SCHEMA

    @property
    def digest(self) -> str:
        """Of the fingerprint."""
        return Fingerprint(**self.fingerprint).digest  # type: ignore[arg-type]


_META = TypeAdapter(StudyMeta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What ``results.jsonl`` holds: the launches, and what of it could not be used."""

    path: Path
    trials: tuple[TrialRecord, ...]
    """In order; of two with one number the first, whose requests the folder of that number holds."""
    unread: int
    """Lines that are no record of a launch."""
    repeated: tuple[int, ...]
    """Launch numbers that come again."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for everything that was left out."""
        told = []
        if self.unread:
            lines = "1 line" if self.unread == 1 else f"{self.unread} lines"
            told.append(f"{self.path}: {lines} could not be read and count as no launch")
        if self.repeated:
            numbers = ", ".join(map(str, self.repeated))
            told.append(f"{self.path}: more than one record of launch {numbers}: the first counts")
        return tuple(told)


class RecordStore:
    """The records of one study."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def database(self) -> Path:
        """Optuna's database."""
        return self.folder / "study.db"

    @property
    def present(self) -> bool:
        """Whether there is a study, sound or damaged."""
        return self._results.exists() or (self.folder / "meta.json").exists()

    @property
    def _results(self) -> Path:
        return self.folder / "results.jsonl"

    @contextlib.contextmanager
    def lock(self, holder: str) -> Iterator[None]:
        """Hold the study for one process; the lock ends with the process, however it ends. Raises ``Refused`` naming who holds it."""
        with _disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                other = os.read(descriptor, 500).decode(errors="replace").strip() or "another process"
                raise Refused(
                    f"study {self.folder.name} is being added to by {other}",
                    hint="wait until that has ended, or start a study beside it with --new-study",
                ) from None
            with _disk_errors(self.folder):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, holder.encode())
            yield
        finally:
            os.close(descriptor)

    def read_meta(self) -> StudyMeta | None:
        """What the study is, or ``None`` for a study that does not exist yet.

        Raises ``Refused`` when a newer version of the tool wrote it or when there are results without it, ``StopStudy`` when it cannot
        be read.
        """
        path = self.folder / "meta.json"
        try:
            text = path.read_bytes()
            raw = json.loads(text)
        except FileNotFoundError:
            if self._results.exists():
                raise Refused(
                    f"{path} is missing: on what the results beside it were measured is not known",
                    hint="restore the file from a backup, or start over with --new-study; the results are kept",
                ) from None
            return None
        except (OSError, ValueError) as error:
            raise StopStudy(
                f"{path}: cannot be read: {error}", hint="restore the file from a backup, or start over with --new-study"
            ) from None
        found = raw.get("schema") if isinstance(raw, dict) else None
        if isinstance(found, int) and found > SCHEMA:
            raise Refused(
                f"{path}: written by a newer autotuner (schema {found}, this one reads {SCHEMA})",
                hint="upgrade autotuner, or start a study of your own with --new-study",
            )
        try:
            return _META.validate_json(text)
        except ValidationError as error:
            raise StopStudy(f"{path}: {error.errors()[0]['msg']}", hint="start over with --new-study") from None

    def write_meta(self, meta: StudyMeta) -> None:
        """Lay out the folder of a new study, or note the workloads of the latest run."""
        with _disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            disk.replace(self.folder / "meta.json", _META.dump_json(meta, indent=1))

    def append(self, record: TrialRecord) -> None:
        """Keep a launch for good: the line is on the disk when this returns."""
        line = _TRIAL.dump_json(record) + b"\n"
        path = self._results
        with _disk_errors(path):
            # One write: a torn line can only be the last one, and the reader skips it.
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                if _ends_torn(path):
                    line = b"\n" + line
                written = os.write(descriptor, line)
                if written != len(line):
                    raise OSError(errno.ENOSPC, "only a part was written")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def trials(self) -> tuple[TrialRecord, ...]:
        """Every launch, in order. A line torn by a power cut is left out; the launch is then asked again."""
        return self.read().trials

    def read(self) -> Reading:
        """Every launch, and what could not be used of the file. Raises ``StopStudy`` when the file cannot be read."""
        try:
            lines = self._results.read_bytes().split(b"\n")
        except FileNotFoundError:
            lines = []
        except OSError as error:
            raise StopStudy(f"{self._results}: cannot be read: {error.strerror}", hint="check owner and mode of the file (ls -l)") from None
        found: dict[int, TrialRecord] = {}
        unread, repeated = 0, []
        for line in filter(bytes.strip, lines):
            try:
                record = _TRIAL.validate_json(line)
            except ValidationError:
                unread += 1
                continue
            if record.number in found:
                repeated.append(record.number)
            found.setdefault(record.number, record)
        return Reading(path=self._results, trials=tuple(found.values()), unread=unread, repeated=tuple(sorted(set(repeated))))

    def write_cell(self, number: int, key: str, records: Iterable[RequestRecord]) -> None:
        """Keep the raw requests of one cell, compressed."""
        folder = self.folder / "trials" / str(number)
        with _disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            temporary = folder / f".{key}.new"
            with gzip.open(temporary, "wt", encoding="utf-8", compresslevel=3) as stream:
                for record in records:
                    stream.write(json.dumps(_compact(record), separators=(",", ":")) + "\n")
            temporary.replace(folder / f"{key}.jsonl.gz")

    def write_log(self, number: int, log: str) -> None:
        """Keep the server's log of a trial, compressed."""
        folder = self.folder / "trials" / str(number)
        with _disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with gzip.open(folder / "server.log.gz", "wt", encoding="utf-8", compresslevel=3) as stream:
                stream.write(log)


def studies(state: Path) -> tuple[RecordStore, ...]:
    """Every study under a state folder, oldest first; also those whose files are damaged."""
    found: dict[Path, float] = {}
    for name in ("results.jsonl", "meta.json"):
        for path in (state / "studies").glob(f"*/{name}"):
            found[path.parent] = path.stat().st_mtime
    return tuple(RecordStore(folder) for folder in sorted(found, key=lambda folder: found[folder]))


def trial_json(record: TrialRecord) -> dict[str, object]:
    """A launch as plain values, as it stands in ``results.jsonl``."""
    plain: dict[str, object] = _TRIAL.dump_python(record, mode="json")
    config = record.config
    return {**plain, "config": {"parameters": dict(config), "extra_args": list(config.extra_args), "digest": config.digest}}


def _disk_errors(path: Path) -> AbstractContextManager[None]:
    return disk.refusals("write", path, then="start the same command again: it continues where it stopped")


def _compact(record: RequestRecord) -> dict[str, Any]:
    row = {key: value for key, value in asdict(record).items() if value not in (None, ())}
    row["chunks"] = [[round(at, 6), count] for at, count in record.chunks]
    return row


def _ends_torn(path: Path) -> bool:
    with path.open("rb") as stream:
        if stream.seek(0, os.SEEK_END) == 0:
            return False
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) != b"\n"
