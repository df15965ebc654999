"""Whole nights on booted hosts: a host with a production unit is tuned and left as it was, also two of them at once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.hosts.machine import Machine
from tests.hosts.matrix import oracle
from tests.hosts.matrix.scene import Fault, Scene
from tests.hosts.matrix.watch import now

pytestmark = pytest.mark.host

QUIET = Fault(act=lambda _: None, ttl_s=20.0)


def assert_as_before(scene: Scene) -> None:
    samples = scene.watch.samples()
    found = oracle.o1(samples, scene.before, scene.machine)
    found += oracle.o2(scene.machine) + oracle.o3(samples)
    found += oracle.o4(scene.controller, ended_itself=True) + oracle.o5(scene.controller, samples, ended_at=scene.ended_at)
    assert found == []


def test_a_night_measures_and_leaves_the_host_as_it_was(machine: Machine, tmp_path: Path) -> None:
    with Scene(machine, tmp_path, QUIET, "", trials=2) as scene:
        scene.controller.start()
        assert scene.controller.wait() == 0, scene.controller.errors
        scene.ended_at = now()
        scene.wait_restored()
        assert [record["outcome"] for record in scene.controller.records] == ["measured", "measured"]
        assert {sample.held for sample in scene.watch.samples()} > {("prod.service",)}, "no candidate was seen"
        assert_as_before(scene)


def test_two_hosts_are_tuned_at_once_and_the_death_of_one_tuner_does_not_reach_the_other(
    two_machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    one, other = two_machines
    with Scene(one, tmp_path / "one", QUIET, "") as dying, Scene(other, tmp_path / "other", QUIET, "", trials=2) as living:
        living.controller.start()
        dying.controller.start("p5", hold=False)
        dying.controller.wait_reached()
        dying.fault_at = now()
        dying.controller.signal(signal.SIGKILL)
        assert living.controller.wait() == 0, living.controller.errors
        living.ended_at = now()
        dying.wait_restored()
        for scene in (dying, living):
            scene.wait_restored()
        assert_as_before(living)
        samples = dying.watch.samples()
        assert oracle.o1(samples, dying.before, one) == []
        assert oracle.o2(one) + oracle.o3(samples) == []
