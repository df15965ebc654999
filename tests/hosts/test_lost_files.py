"""Files of a session that somebody removed or damaged: production comes back all the same, and nobody is told what was not seen."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest

from autotuner.deploy import HostSession, people
from autotuner.errors import NotRestored, Refused, StopStudy
from autotuner.model.host import Host
from tests.hosts.machine import Machine, until
from tests.hosts.test_session import Tuned

pytestmark = pytest.mark.host

SESSION = "/var/lib/autotuner/sessions/30000"
SPARE = "/etc/autotuner/sessions/30000.json"
LEASE = "/var/tmp/autotuner-lease/port-30000.json"  # noqa: S108 - of the host under test


@pytest.fixture
def tuned(machine: Machine) -> Iterator[Tuned]:
    made = Tuned(machine)
    machine.light_production()
    yield made
    for process in made.started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def host_of(tuned: Tuned) -> Host:
    return Host.model_validate_json(json.dumps(tuned.document))


def damage(machine: Machine, *paths: str) -> None:
    for path in paths:
        machine.run(["truncate", "--size=5", path])


@pytest.mark.parametrize("paths", [(f"{SESSION}/snapshot.json",), (SPARE,)], ids=["snapshot", "copy"])
def test_one_damaged_copy_of_the_snapshot_costs_nothing(tuned: Tuned, paths: tuple[str, ...]) -> None:
    argv = tuned.argv()
    process = tuned.tuner("measuring")
    damage(tuned.machine, *paths)
    process.kill()
    tuned.assert_as_before(argv)


def test_everything_of_the_session_removed_the_host_restores_itself(tuned: Tuned) -> None:
    argv = tuned.argv()
    process = tuned.tuner("measuring")
    tuned.machine.run(["rm", "-rf", "/var/lib/autotuner"])
    process.kill()
    tuned.assert_as_before(argv)


def test_everything_removed_and_a_tuner_that_lives_sees_it_restored_before_it_says_so(tuned: Tuned) -> None:
    argv = tuned.argv()
    with pytest.raises(StopStudy, match="the lease was lost"):
        _tune_and_lose_everything(tuned)
    tuned.assert_as_before(argv)


def test_both_copies_damaged_and_the_tuner_dead_is_said_and_not_called_restored(tuned: Tuned) -> None:
    process = tuned.tuner("measuring")
    damage(tuned.machine, f"{SESSION}/snapshot.json", SPARE)
    process.kill()
    process.wait()
    host = host_of(tuned)
    with people.reached(host) as side:
        with pytest.raises(NotRestored, match="cannot be read any more"):
            people.restore(host, side, take_over=True)
        tuned.machine.run(["rm", "-r", SESSION, SPARE])
        with pytest.raises(NotRestored, match="nothing on the host says any more what served before"):
            people.restore(host, side, take_over=True)
        until(lambda: not ((holder := people.holder_of(host, side)) and holder.alive), "the end of the dead tuner's lease")
    with pytest.raises(Refused, match="nothing on the host says any more what served before"), tuned.session() as made, made:
        pass


@pytest.mark.parametrize("content", ["", "{not json"], ids=["empty", "garbage"])
def test_a_lease_that_cannot_be_read_is_in_nobodys_way(tuned: Tuned, content: str) -> None:
    tuned.machine.run(["mkdir", "-p", "-m", "1777", "/var/tmp/autotuner-lease"])  # noqa: S108 - of the host under test
    tuned.machine.write(LEASE, content)
    with tuned.session() as made, made:
        pass
    assert any("cannot be read, and is removed" in notice for notice in tuned.notices)
    assert not tuned.left()


def _tune_and_lose_everything(tuned: Tuned) -> None:
    with tuned.session(ttl_s=30.0) as made, made as session:
        tuned.launch(session)
        tuned.machine.run(["rm", "-rf", "/var/lib/autotuner"])
        damage(tuned.machine, SPARE)
        until(lambda: _lost(session), "the tuner to hear of it")


def _lost(session: HostSession) -> bool:
    with contextlib.suppress(StopStudy):
        session.touch()
        return False
    return True
