"""A line is kept whole or not at all, also when the power goes or the disk fills up."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from autotuner.journal import Journal

LINES = [b'{"number":%d,"text":"%s"}' % (number, b"x" * 50) for number in range(4)]
ROOM = 4096


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    made = Journal(tmp_path / "results.jsonl", reserve=ROOM)
    made.settle()
    return made


@pytest.fixture
def disk_full(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on nothing grows; what is on the disk already can be written again."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return lambda: monkeypatch.setattr(os, "write", full)


def keep(journal: Journal, lines: list[bytes]) -> None:
    for line in lines:
        assert journal.append(line)


def test_lines_come_back_in_order_and_only_the_user_may_read_them(journal: Journal) -> None:
    keep(journal, LINES)
    assert journal.lines() == LINES
    assert journal.path.read_bytes() == b"".join(line + b"\n" for line in LINES)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (journal.path, journal.reserve)} == {0o600}


def test_a_line_counts_when_it_is_on_the_disk(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: dict[int, int] = {}
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        found = os.fstat(descriptor)
        fsync(descriptor)
        synced[found.st_ino] = found.st_size

    monkeypatch.setattr(os, "fsync", noted)
    keep(journal, LINES[:1])
    assert synced[journal.path.stat().st_ino] == len(LINES[0]) + 1
    assert journal.path.parent.stat().st_ino in synced  # its name as well
    keep(journal, LINES[1:2])
    assert synced[journal.path.stat().st_ino] == len(LINES[0]) + len(LINES[1]) + 2


def test_a_line_that_cannot_be_synced_is_not_kept_by_halves(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(journal, LINES[:1])

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output error"):
        journal.append(LINES[1])
    monkeypatch.undo()
    assert journal.lines() == LINES[:1]
    assert not journal.mend()


@pytest.mark.parametrize("cut", range(1, len(LINES[2]) + 1, 7))
def test_an_end_that_is_torn_anywhere_is_taken_off_once_and_kept_beside(journal: Journal, cut: int) -> None:
    keep(journal, LINES[:2])
    with journal.path.open("ab") as file:
        file.write(LINES[2][: -cut or None])

    assert journal.mend() == (cut < len(LINES[2]))
    assert not journal.mend()
    assert journal.lines() == LINES[:2]
    keep(journal, LINES[3:])
    assert journal.path.read_bytes() == b"".join(line + b"\n" for line in (*LINES[:2], LINES[3]))
    if cut < len(LINES[2]):
        assert journal.torn.read_bytes() == LINES[2][:-cut] + b"\n"


@pytest.mark.parametrize("torn", [b"\0" * 4096, b"\0" * 100 + b'text"}\n', b'{"number":2,"te\n\0\0\0\n', b"\xff\xfe"])
def test_pages_that_never_reached_the_disk_are_a_torn_end_too(journal: Journal, torn: bytes) -> None:
    keep(journal, LINES[:2])
    with journal.path.open("ab") as file:
        file.write(torn)
    assert journal.mend()
    assert journal.lines() == LINES[:2]


def test_a_whole_line_that_lacks_its_end_only_gets_one(journal: Journal) -> None:
    keep(journal, LINES[:1])
    with journal.path.open("ab") as file:
        file.write(LINES[1])
    assert not journal.mend()
    assert not journal.torn.exists()
    keep(journal, LINES[2:3])
    assert journal.path.read_bytes().splitlines() == LINES[:3]


def test_a_torn_end_does_not_swallow_the_next_line(journal: Journal) -> None:
    journal.path.write_bytes(LINES[0] + b"\n" + LINES[1][:9])
    keep(journal, LINES[2:])
    assert journal.lines() == [LINES[0], *LINES[2:]]


def test_a_full_disk_sends_lines_to_the_reserve(journal: Journal, disk_full: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    keep(journal, LINES[:2])
    disk_full()
    assert not journal.append(LINES[2])
    assert not journal.append(LINES[3])
    assert journal.lines() == LINES
    assert journal.path.read_bytes().splitlines() == LINES[:2]
    with pytest.raises(OSError, match="No space left"):
        journal.settle()
    assert journal.lines() == LINES

    monkeypatch.undo()
    journal.settle()

    assert journal.path.read_bytes().splitlines() == LINES
    assert journal.lines() == LINES
    assert journal.reserve.read_bytes() == b"\0" * ROOM


def test_settling_that_was_killed_half_way_repeats_no_line(
    journal: Journal, disk_full: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_full()
    for line in LINES[:2]:
        assert not journal.append(line)
    monkeypatch.undo()
    held = journal.reserve.read_bytes()
    journal.settle()
    journal.reserve.write_bytes(held)  # killed before the reserve was cleared
    journal.settle()
    assert journal.path.read_bytes().splitlines() == LINES[:2]


def test_a_torn_line_in_the_reserve_is_no_line(journal: Journal, disk_full: Callable[[], None]) -> None:
    disk_full()
    journal.append(LINES[0])
    with journal.reserve.open("r+b") as file:
        file.seek(len(LINES[0]) + 1)
        file.write(LINES[1][:20])
    assert journal.lines() == LINES[:1]
    journal.append(LINES[2])
    assert journal.lines() == [LINES[0], LINES[2]]


def test_a_file_system_that_never_writes_in_place_gets_the_reserve_back(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def full_with_reserve(descriptor: int, data: bytes) -> int:
        if journal.reserve.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full_with_reserve)
    monkeypatch.setattr(os, "pwrite", full)
    journal.append(LINES[0])
    assert journal.path.read_bytes().splitlines() == LINES[:1]


def test_a_reserve_that_is_used_up_says_that_the_disk_is_full(journal: Journal, disk_full: Callable[[], None]) -> None:
    disk_full()
    with pytest.raises(OSError, match="No space left"):
        journal.append(b'{"text":"%s"}' % (b"x" * ROOM))
    assert journal.lines() == []


def test_without_a_reserve_a_full_disk_is_an_error(tmp_path: Path, disk_full: Callable[[], None]) -> None:
    journal = Journal(tmp_path / "started.jsonl")
    journal.settle()
    assert not journal.reserve.exists()
    disk_full()
    with pytest.raises(OSError, match="No space left"):
        journal.append(LINES[0])
