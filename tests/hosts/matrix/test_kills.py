"""The tuner is killed at a random instant of the night, again and again: no host stays on a candidate, no acknowledged result is lost."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.hosts.machine import Machine
from tests.hosts.matrix import oracle, results
from tests.hosts.matrix.conftest import KILLS
from tests.hosts.matrix.scene import Fault, Scene
from tests.hosts.matrix.watch import now

pytestmark = [pytest.mark.host, pytest.mark.timeout(3600)]

SHARDS = 3
PATIENCE_S = 180.0


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_tuner_that_is_killed_at_any_instant_leaves_production_serving(host: Machine, folder: Path, shard: int) -> None:
    """One host and one study for all kills of a shard: each start puts in order what the kill before left, and resumes."""
    seed = int(os.environ.get("PYTEST_RANDOM_SEED", "0")) + shard
    chance = random.Random(seed)
    fault = Fault(act=lambda _: None, kills=True, silences=True)
    failed = []
    with Scene(host, folder, fault, "", trials=1000, gated=True) as scene:
        night_s = _measure(scene)
        for kill in range(shard, KILLS, SHARDS):
            delay = chance.uniform(0.2, night_s)
            violations = _kill(scene, delay)
            cell = f"kill-{kill}-after-{delay:.2f}"
            results.keep("kill", cell, scene, violations, seed=seed)
            failed += [f"{cell}: {violation}" for violation in violations]
        scene.controller.trials = sum(record["outcome"] == "measured" for record in scene.controller.records) + 1
        scene.controller.start()
        code = scene.controller.wait(PATIENCE_S)
        failed += [] if code == 0 else [f"the night after all kills ended with {code}: {scene.controller.errors}"]
        failed += oracle.o4(scene.controller, ended_itself=True)
    assert not failed, "\n".join(failed)


def _measure(scene: Scene) -> float:
    """How long a night with one launch takes here: kills are spread evenly over it."""
    many, scene.controller.trials = scene.controller.trials, 1
    begin = time.monotonic()
    scene.controller.start()
    assert scene.controller.wait(PATIENCE_S) == 0, scene.controller.errors
    scene.wait_restored()
    scene.controller.trials = many
    return time.monotonic() - begin


def _kill(scene: Scene, delay: float) -> list[str]:
    begin = len(scene.watch.samples())
    scene.controller.start()
    deadline = time.monotonic() + delay
    while time.monotonic() < deadline and not scene.controller.ended:
        time.sleep(0.01)
    early = "" if not scene.controller.ended else f"O5: the tuner ended with {scene.controller.code} before it was killed"
    scene.fault_at = scene.healed_at = now()
    scene.controller.signal(signal.SIGKILL)
    scene.controller.wait()
    time.sleep(oracle.UNDER_WAY_S + 1.0)
    scene.wait_restored()
    time.sleep(0.3)
    samples = scene.watch.samples()[begin:]
    limit = oracle.t_r(scene.fault.ttl_s, boots=False) + 3
    return [
        *([early] if early else []),
        *oracle.o1(samples, scene.before, scene.machine),
        *oracle.in_time(samples, fault_at=scene.fault_at, limit_s=limit),
        *oracle.o2(scene.machine, lease_may_lie=True),
        *oracle.o3(samples),
        *oracle.o4(scene.controller, ended_itself=False),
    ]
