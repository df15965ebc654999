"""Disks that are full or read-only: known before the first launch where that is possible, and nothing measured is lost."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.lab import Lab

Mount = Callable[[str, str], Path]


@pytest.fixture
def mount(lab: Lab) -> Iterator[Mount]:
    """Mounts a file system of its own in the lab; ``options`` as for mount(8)."""
    mounted: list[Path] = []

    def tmpfs(name: str, options: str) -> Path:
        folder = lab.folder / name
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
        mounted.append(folder)
        return folder

    yield tmpfs
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def assert_refused_before_the_first_launch(lab: Lab, production: list[str], why: str) -> None:
    (pid,) = lab.servers()
    for arguments in ((), ("--dry-run",)):
        done = lab.tune(*arguments)
        assert done.code == 1
        assert done.errors == [f"error: cannot write into {lab.recommendations}/lab: {why}"]
        assert "--recommendations names another folder" in done.hints[0]
    assert lab.servers() == [pid]
    lab.assert_as_before(production)
    assert not (lab.state / "studies").exists()


def test_recommendations_below_a_file_are_refused_before_the_first_launch(lab: Lab) -> None:
    lab.write_host(production="auto")
    production = lab.produce()
    (lab.folder / "file").touch()
    lab.recommendations = lab.folder / "file" / "recommendations"

    assert_refused_before_the_first_launch(lab, production, "Not a directory")


@pytest.mark.host
def test_read_only_recommendations_are_refused_before_the_first_launch(lab: Lab, mount: Mount) -> None:
    lab.write_host(production="auto")
    production = lab.produce()
    lab.recommendations = mount("read-only", "ro,size=64k") / "recommendations"

    assert_refused_before_the_first_launch(lab, production, "Read-only file system")


def fill(ballast: Path) -> None:
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


@pytest.mark.host
def test_a_disk_that_fills_up_keeps_what_was_measured_and_the_same_command_goes_on(lab: Lab, mount: Mount) -> None:
    lab.state = mount("state", "size=4m")
    ballast = lab.state / "ballast"
    night = lab.start_night(trials=3)
    night.wait_for(number=1, event="StageReached", stage="ready")
    fill(ballast)

    done = night.end()

    assert done.code == 1
    assert len(done.errors) == 1
    assert str(lab.study) in done.errors[0]
    assert "free some space" in done.hints[0]
    assert "the same command" in done.hints[0]
    lab.assert_only_servers()
    assert not lab.servers()
    # The launch during which the disk filled up was measured to its end; only its requests and its log are missing.
    kept = lab.trials()
    assert [(trial["number"], trial["outcome"]) for trial in kept] == [(number, "measured") for number in range(2)]
    assert any("launch 1 could not be kept" in event["message"] for event in night.events if event["event"] == "Notice")

    # As long as the disk is full nothing is launched, and nothing is lost.
    refused = lab.tune(trials=3)
    assert refused.code == 1
    assert "No space left on device" in refused.errors[0]
    assert lab.trials() == kept

    ballast.unlink()
    again = lab.tune(trials=3)

    assert again.code == 0, again.err
    trials = lab.trials()
    assert trials[:2] == kept
    assert [(trial["number"], trial["outcome"]) for trial in trials] == [(number, "measured") for number in range(3)]
    assert set(lab.documents()) == {"latency", "long-context", "throughput"}


@pytest.mark.host
def test_a_disk_that_is_full_from_the_start_is_told_before_anything_is_stopped(lab: Lab, mount: Mount) -> None:
    lab.write_host(production="auto")
    argv = lab.produce()
    (pid,) = lab.servers()
    lab.state = mount("state", "size=4k,nr_inodes=2")
    (lab.state / "ballast").write_bytes(b"x" * 4096)

    done = lab.tune()

    assert done.code == 1
    assert len(done.errors) == 1
    assert "No space left on device" in done.errors[0]
    assert lab.servers() == [pid]
    lab.assert_as_before(argv)


def test_a_database_that_somebody_holds_for_the_whole_night_costs_one_warning(lab: Lab) -> None:
    assert lab.tune(trials=1).code == 0
    holder = sqlite3.connect(lab.study / "study.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")

    done = lab.tune(trials=2)

    assert done.code == 0, done.err
    assert done.err.count("database is locked; the run goes on") == 1
    assert [(trial["number"], trial["outcome"]) for trial in lab.trials()] == [(number, "measured") for number in range(2)]
    holder.close()
    assert lab.tune(trials=2).code == 0
    reader = sqlite3.connect(lab.study / "study.db")
    states = [state for (state,) in reader.execute("select state from trials")]
    reader.close()
    assert states == ["COMPLETE"] * len(states)
    assert len(states) == 2
