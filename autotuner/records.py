"""RecordStore: what a study measured, on the controller's disk, so that no completed measurement is ever lost.

STATE/studies/ID/meta.json             what the study is: fingerprint, space, workloads, matrix
STATE/studies/ID/results.jsonl         one line per launch, appended and fsynced; the truth
STATE/studies/ID/results.jsonl.reserve room that is kept for it on a disk that fills up
STATE/studies/ID/started.jsonl         one line per launch that began, so that a killed run leaves a trace
STATE/studies/ID/trials/N/CELL.jsonl.gz   raw request records
STATE/studies/ID/trials/N/quality.json.gz answers to the questions of the correctness gate, and what became of them
STATE/studies/ID/quality/reference.json   what the baseline without speculation answered
STATE/studies/ID/study.db              Optuna's database; derived, can be rebuilt from results.jsonl
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import json
import os
import re
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import TypeAdapter, ValidationError

from autotuner import disk
from autotuner.errors import Refused, StopStudy
from autotuner.journal import Journal
from autotuner.model.configuration import Configuration
from autotuner.model.document import Scalar
from autotuner.model.events import Phase
from autotuner.model.facts import Fingerprint
from autotuner.model.measurement import RequestRecord
from autotuner.model.trial import TrialRecord
from autotuner.model.workload import Workload

SCHEMA = 1
"""Version of everything in a study's folder; a newer one is refused, never guessed at."""

_TRIAL = TypeAdapter(TrialRecord)
_RESERVE_BYTES = 2 * 1024 * 1024
"""Room for some hundred launches; one is enough, for no other begins on a full disk."""
_LOCKED_BY_NOBODY = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""What a file system answers that has no locks."""


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
    load_floor: str | None = None
    """What the latest self-test of the load generator had found when the study was last run; ``None`` where there was none."""
    schema: int = SCHEMA

    @property
    def digest(self) -> str:
        """Of the fingerprint."""
        return Fingerprint(**self.fingerprint).digest  # type: ignore[arg-type]


_META = TypeAdapter(StudyMeta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A launch that began, or with ``abandoned`` one that was given up in good order."""

    number: int
    phase: Phase
    config: Configuration
    at: str
    """ISO 8601, UTC."""
    abandoned: bool = False


_BEGUN = TypeAdapter(Begun)


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
        self._results = Journal(folder / "results.jsonl", reserve=_RESERVE_BYTES)
        self._started = Journal(folder / "started.jsonl")
        self._notices: list[str] = []
        self._told: set[int] = set()

    @property
    def database(self) -> Path:
        """Optuna's database."""
        return self.folder / "study.db"

    @property
    def quality(self) -> Path:
        """Folder of the correctness gate's reference answers."""
        return self.folder / "quality"

    @property
    def present(self) -> bool:
        """Whether there is a study, sound or damaged, or one that this user may not look into."""
        try:
            return self._results.path.exists() or (self.folder / "meta.json").exists()
        except PermissionError:
            return True

    def take_notices(self) -> tuple[str, ...]:
        """What a person should read about the disk since this was last asked."""
        found, self._notices = tuple(self._notices), []
        return found

    @contextlib.contextmanager
    def lock(self, holder: str) -> Iterator[None]:
        """Hold the study for one process; the lock ends with the process, however it ends.

        ``holder`` is ``USER@MACHINE (pid N)``. Raises ``Refused`` naming who holds it, or when a part of the study belongs to another user.
        """
        with _disk_errors(self.folder):
            self._refuse_foreign()
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
            disk.sync_folder(self.folder.parent)
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._held(os.read(descriptor, 500).decode(errors="replace").strip()) from None
            except OSError as error:
                if error.errno not in _LOCKED_BY_NOBODY:
                    raise
                raise Refused(
                    f"{self.folder}: the file system has no locks, so that two runs could add to one study: {error.strerror}",
                    hint="name a folder on a disk of this machine with --state-dir",
                ) from None
            with _disk_errors(self.folder):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, holder.encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def _held(self, other: str) -> Refused:
        told = re.search(r"@(\S+) \(pid (\d+)\)", other)
        said = f"study {self.folder.name} is being added to by {other or 'another process'}"
        if told and told[1] == socket.gethostname() and not Path(f"/proc/{told[2]}").exists():
            return Refused(
                f"{said}, which has ended, but the file system still holds its lock",
                hint=f"a network file system does so for some minutes: wait, then start the same command again; `fuser {self.folder}/lock` "
                "names a process of this machine that holds it, if there is one",
            )
        return Refused(said, hint="wait until that has ended, or start a study beside it with --new-study")

    def prepare(self) -> None:
        """Mend what a power cut left, and keep room for a disk that fills up. The caller holds the lock.

        Raises ``Refused`` when a part of the study belongs to another user, ``AutotunerError`` when the disk is full.
        """
        with _disk_errors(self.folder):
            self._refuse_foreign()
            for path in filter(Path.exists, self._files()):
                _close_to_others(path)
            if self._results.mend():
                where = f"it is in {self._results.torn.name} now and counts as no launch"
                self._notices.append(f"{self._results.path}: its end was torn, as by a power cut: {where}")
            self._started.mend()
            self._results.settle()

    def make_ready(self) -> None:
        """Make sure that another launch could be kept. Raises ``AutotunerError`` when the disk is full; all that was measured is kept."""
        with _disk_errors(self.folder):
            self._results.settle()
            disk.probe(self.folder)

    def _files(self) -> tuple[Path, ...]:
        journals = [path for journal in (self._results, self._started) for path in (journal.path, journal.reserve, journal.torn)]
        database = [self.database, self.database.with_name(f"{self.database.name}-journal")]
        return (self.folder / "meta.json", self.folder / "lock", *journals, *database)

    def _refuse_foreign(self) -> None:
        disk.refuse_foreign((self.folder, *self._files(), self.folder / "trials"))

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
            if self._results.path.exists():
                raise Refused(
                    f"{path} is missing: on what the results beside it were measured is not known",
                    hint="restore the file from a backup, or start over with --new-study; the results are kept",
                ) from None
            return None
        except (OSError, ValueError) as error:
            if isinstance(error, PermissionError):
                self._refuse_foreign()
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
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
            disk.replace(self.folder / "meta.json", _META.dump_json(meta, indent=1), mode=0o600)

    def append(self, record: TrialRecord) -> None:
        """Keep a launch for good: the line is on the disk when this returns. Raises ``AutotunerError`` when it could be kept nowhere."""
        with _disk_errors(self._results.path):
            if not self._results.append(_TRIAL.dump_json(record)):
                self._notices.append(f"the disk of {self.folder} is full: launch {record.number} is kept in {self._results.reserve.name}")

    def begin(self, begun: Begun) -> None:
        """Note for good that a launch begins, or was given up in good order. Raises ``AutotunerError``."""
        with _disk_errors(self._started.path):
            self._started.append(_BEGUN.dump_json(begun))

    def begun(self) -> tuple[Begun, ...]:
        """Every launch that began, in order. Raises ``StopStudy`` when the file cannot be read."""
        found = []
        for line in self._lines(self._started):
            with contextlib.suppress(ValidationError):
                found.append(_BEGUN.validate_json(line))
        return tuple(found)

    def trials(self) -> tuple[TrialRecord, ...]:
        """Every launch, in order. A line torn by a power cut is left out; the launch is then asked again."""
        return self.read().trials

    def read(self) -> Reading:
        """Every launch, and what could not be used of the file. Raises ``StopStudy`` when the file cannot be read."""
        found: dict[int, TrialRecord] = {}
        unread, repeated = 0, []
        for line in self._lines(self._results):
            try:
                record = _TRIAL.validate_json(line)
            except ValidationError:
                unread += 1
                continue
            if record.number in found:
                repeated.append(record.number)
            found.setdefault(record.number, record)
        return Reading(path=self._results.path, trials=tuple(found.values()), unread=unread, repeated=tuple(sorted(set(repeated))))

    def write_cell(self, number: int, key: str, records: Iterable[RequestRecord]) -> None:
        """Keep the raw requests of one cell, compressed. What cannot be written is a notice: it must not cost the launch."""
        rows = (json.dumps(request_row(record), separators=(",", ":")) + "\n" for record in records)
        self._write_raw(number, f"{key}.jsonl.gz", rows)

    def write_quality(self, number: int, details: Mapping[str, object]) -> None:
        """Keep the answers of a launch and what became of them, compressed. What cannot be written is a notice."""
        self._write_raw(number, "quality.json.gz", (json.dumps(details, indent=1, ensure_ascii=False),))

    def write_log(self, number: int, log: str) -> None:
        """Keep the server's log of a trial, compressed. What cannot be written is a notice."""
        self._write_raw(number, "server.log.gz", (log,))

    def _write_raw(self, number: int, name: str, texts: Iterable[str]) -> None:
        folder = self.folder / "trials" / str(number)
        temporary = folder / f".{name}.new"
        try:
            disk.refuse_foreign((folder.parent, folder))
            folder.mkdir(parents=True, exist_ok=True)
            temporary.unlink(missing_ok=True)
            with (
                os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file,
                gzip.open(file, "wt", encoding="utf-8", compresslevel=3) as stream,
            ):
                stream.writelines(texts)
            temporary.replace(folder / name)
        except (OSError, Refused) as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            if number not in self._told:
                self._told.add(number)
                cause = error.message if isinstance(error, Refused) else error.strerror or str(error)
                self._notices.append(f"the requests or the log of launch {number} could not be kept in {folder}: {cause}")

    def _lines(self, journal: Journal) -> list[bytes]:
        try:
            return journal.lines()
        except OSError as error:
            raise StopStudy(f"{journal.path}: cannot be read: {error.strerror}", hint="check owner and mode of the file (ls -l)") from None


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


def _close_to_others(path: Path) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        with contextlib.suppress(OSError):  # on a read-only mount nothing is written either
            path.chmod(mode & 0o700)


def request_row(record: RequestRecord) -> dict[str, Any]:
    """A request as plain values, without those that are not there."""
    row = {key: value for key, value in asdict(record).items() if value not in (None, ())}
    row["chunks"] = [[round(at, 6), count] for at, count in record.chunks]
    return row
