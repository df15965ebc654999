from __future__ import annotations

import errno
import fcntl
import json
import os
import socket

import pytest

from autotuner.errors import AutotunerError, Refused, StopStudy
from autotuner.model.measurement import RequestRecord
from autotuner.records import SCHEMA, RecordStore, state_dir, studies
from tests import builders as b


def store(tmp_path):
    return RecordStore(b.folder(tmp_path))


def test_a_launch_is_read_back_as_it_was_written(tmp_path):
    kept = store(tmp_path)
    records = [b.measured(0, b.config(block=8, window="none"), (1.0, 2.0, 3.0)), b.failed(1, b.config(graphs=False))]
    for record in records:
        kept.append(record)
    assert kept.trials() == tuple(records)


def test_a_torn_last_line_costs_only_that_launch_and_no_later_one(tmp_path):
    kept = store(tmp_path)
    kept.append(b.measured(0, b.config(), (1.0, 2.0, 3.0)))
    path = kept.folder / "results.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    kept.append(b.measured(1, b.config(graphs=False), (4.0, 5.0, 6.0)))
    assert [record.number for record in kept.trials()] == [0, 1]


def test_a_full_disk_is_one_sentence_and_keeps_what_was_there(tmp_path, monkeypatch):
    kept = store(tmp_path)
    kept.append(b.measured(0, b.config(), (1.0, 2.0, 3.0)))

    def full(descriptor, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(AutotunerError, match="No space left on device") as caught:
        kept.append(b.measured(1, b.config(graphs=False), (4.0, 5.0, 6.0)))
    assert "continues where it stopped" in caught.value.hint
    monkeypatch.undo()
    assert [record.number for record in kept.trials()] == [0]


def test_raw_requests_are_kept_compressed_one_line_each(tmp_path):
    import gzip

    kept = store(tmp_path)
    rows = [
        RequestRecord(index=0, lane=0, domain="code", start_s=0.5, chunks=((0.7, 3), (0.9, 6)), completion_tokens=6),
        RequestRecord(index=1, lane=1, domain="code", start_s=0.5, error="http-500", detail="boom"),
    ]
    kept.write_cell(4, "ctx60-c2-out8", rows)
    lines = gzip.decompress((kept.folder / "trials" / "4" / "ctx60-c2-out8.jsonl.gz").read_bytes()).splitlines()
    assert [json.loads(line).get("error") for line in lines] == [None, "http-500"]
    assert json.loads(lines[0])["chunks"] == [[0.7, 3], [0.9, 6]]


def test_a_newer_schema_is_refused(tmp_path):
    kept = store(tmp_path)
    (kept.folder / "meta.json").write_text(json.dumps({"schema": SCHEMA + 1}))
    with pytest.raises(Refused, match=f"schema {SCHEMA + 1}"):
        kept.read_meta()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}'])
def test_a_broken_meta_file_stops_with_a_sentence(tmp_path, text):
    kept = store(tmp_path)
    (kept.folder / "meta.json").write_text(text)
    with pytest.raises(StopStudy, match=r"meta\.json") as caught:
        kept.read_meta()
    assert caught.value.hint


def test_state_folder_comes_from_the_argument_then_systemd_then_the_platform(monkeypatch, tmp_path):
    monkeypatch.setenv("STATE_DIRECTORY", f"{tmp_path}/unit:{tmp_path}/other")
    assert state_dir("/elsewhere").as_posix() == "/elsewhere"
    assert state_dir().as_posix() == f"{tmp_path}/unit"
    monkeypatch.delenv("STATE_DIRECTORY")
    assert state_dir().name == "autotuner"


def test_a_folder_without_studies_has_none(tmp_path):
    assert studies(tmp_path) == ()


def test_a_study_is_held_by_one_process_and_named(tmp_path):
    kept = store(tmp_path)
    with (
        kept.lock("alice@box (pid 7)"),
        pytest.raises(Refused, match=r"being added to by alice@box \(pid 7\)"),
        RecordStore(kept.folder).lock("bob"),
    ):
        pass
    with kept.lock("bob"):
        pass


def test_lines_that_are_no_record_are_counted_and_told(tmp_path):
    kept = store(tmp_path)
    for number in range(3):
        kept.append(b.measured(number, b.config(block=number), (1.0, 2.0, 3.0)))
    assert kept.read().warnings == ()
    path = kept.folder / "results.jsonl"
    first, second, third = path.read_bytes().splitlines()
    bogus = second.replace(b'"outcome":"measured"', b'"outcome":"bogus"')
    assert bogus != second
    path.write_bytes(b"\n".join([first, b"garbage", bogus, b"", third, b""]))
    reading = kept.read()
    assert [record.number for record in reading.trials] == [0, 2]
    assert reading.warnings == (f"{path}: 2 lines could not be read and count as no launch",)


def test_of_two_records_of_one_launch_the_first_counts_and_that_is_told(tmp_path):
    kept = store(tmp_path)
    first, second = b.measured(0, b.config(), (1.0, 2.0, 3.0)), b.measured(0, b.config(), (9.0, 9.0, 9.0))
    for record in (first, second):
        kept.append(record)
    assert kept.trials() == (first,)
    (told,) = kept.read().warnings
    assert "more than one record of launch 0: the first counts" in told


def test_results_that_cannot_be_read_stop_with_a_sentence(tmp_path):
    kept = store(tmp_path)
    (kept.folder / "results.jsonl").mkdir()
    with pytest.raises(StopStudy, match=r"results\.jsonl: cannot be read"):
        kept.trials()


def test_results_without_their_meta_file_are_not_adopted(tmp_path):
    kept = store(tmp_path)
    assert kept.read_meta() is None
    kept.append(b.measured(0, b.config(), (1.0, 2.0, 3.0)))
    with pytest.raises(Refused, match=r"meta\.json is missing") as caught:
        kept.read_meta()
    assert "--new-study" in caught.value.hint
    assert [found.folder for found in studies(tmp_path)] == [kept.folder]


def test_requests_that_cannot_be_kept_are_told_once_per_launch_and_cost_nothing_else(tmp_path):
    kept = store(tmp_path)
    (kept.folder / "trials").write_text("in the way")
    kept.write_cell(4, "ctx60-c2-out8", ())
    kept.write_log(4, "the log")
    kept.write_cell(5, "ctx60-c2-out8", ())
    told = kept.take_notices()
    assert ["launch 4" in told[0], "launch 5" in told[1], len(told)] == [True, True, 2]
    assert kept.take_notices() == ()


def test_an_end_that_a_power_cut_tore_is_told_at_one_start_only(tmp_path):
    kept = store(tmp_path)
    kept.append(b.measured(0, b.config(), (1.0, 2.0, 3.0)))
    path = kept.folder / "results.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:100])
    kept.prepare()
    (told,) = kept.take_notices()
    assert told == f"{path}: its end was torn, as by a power cut: it is in results.jsonl.torn now and counts as no launch"
    assert path.read_bytes() == whole
    kept.prepare()
    assert (kept.take_notices(), kept.read().warnings) == ((), ())


@pytest.mark.parametrize("name", ["", "study.db", "results.jsonl", "meta.json"])
def test_a_study_of_another_user_is_refused_before_anything_is_written(tmp_path, monkeypatch, name):
    kept = store(tmp_path)
    (kept.folder / "study.db").touch()
    lstat, other = type(tmp_path).lstat, os.geteuid() + 1

    def owned(path):
        found = list(lstat(path))
        found[4] = other if path == kept.folder / name else found[4]
        return os.stat_result(found)

    monkeypatch.setattr(type(tmp_path), "lstat", owned)
    if name:
        (kept.folder / name).touch()
    with pytest.raises(Refused, match="belongs to") as caught, kept.lock("bob@box (pid 7)"):
        pass
    assert "--state-dir" in caught.value.hint
    assert not (kept.folder / "lock").exists()


def test_files_of_an_earlier_version_are_closed_to_others(tmp_path):
    kept = store(tmp_path)
    for name in ("study.db", "meta.json", "results.jsonl"):
        (kept.folder / name).touch(mode=0o644)
    kept.prepare()
    assert {(kept.folder / name).stat().st_mode & 0o777 for name in ("study.db", "meta.json", "results.jsonl")} == {0o600}


def test_a_lock_whose_holder_has_ended_is_explained(tmp_path):
    kept = store(tmp_path)
    gone = 2**22 + 1  # above every pid
    with (
        kept.lock(f"alice@{socket.gethostname()} (pid {gone})"),
        pytest.raises(Refused, match="which has ended, but the file system still holds its lock") as caught,
        RecordStore(kept.folder).lock("bob"),
    ):
        pass
    assert "network file system" in caught.value.hint


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    kept = store(tmp_path)

    def none(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.raises(Refused, match="has no locks") as caught, kept.lock("bob"):
        pass
    assert "--state-dir" in caught.value.hint
