"""Whether the holder of a lease lives: the host's word, and what this machine sees itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from autotuner.discover.tenancy import holder_lives, how_to_stop, this_machine
from autotuner.services.onhost import processes


@pytest.fixture
def holder():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def _content(process: subprocess.Popen[bytes], machine: str) -> dict[str, object]:
    found = processes.read(process.pid)
    assert found is not None
    return {"machine": machine, "pid": process.pid, "started": found.started}


def test_a_holder_that_ran_here_is_gone_as_soon_as_its_process_is(holder: subprocess.Popen[bytes]) -> None:
    content = _content(holder, this_machine())
    assert holder_lives(content, by_host=True)
    holder.kill()
    holder.wait()
    assert not holder_lives(content, by_host=True)


def test_of_a_holder_elsewhere_only_the_host_knows(holder: subprocess.Popen[bytes]) -> None:
    content = _content(holder, "another boot pid:[1]")
    holder.kill()
    holder.wait()
    assert holder_lives(content, by_host=True)
    assert not holder_lives(content, by_host=False)


def test_what_the_host_says_is_gone_stays_gone(holder: subprocess.Popen[bytes]) -> None:
    assert not holder_lives(_content(holder, this_machine()), by_host=False)
    assert not holder_lives({}, by_host=False)
    assert holder_lives({}, by_host=True)


def test_a_tuner_is_ended_by_its_pid_where_that_pid_means_it() -> None:
    held = {"node": "vm", "pid": 1, "machine": "4f7b-boot pid:[4026532201]"}
    assert how_to_stop(held) == "end it inside its container, called vm, where it is process 1, or stop that container"
    assert how_to_stop({**held, "pid": 71, "machine": "4f7b-boot pid:[4026531836]"}) == "kill 71 on vm"
    assert how_to_stop({**held, "machine": this_machine()}) == "kill 1 on vm"
    assert how_to_stop({"pid": 71}) == "kill 71 on its machine"
    assert how_to_stop({}) == "kill PID on its machine"
