"""Which oracles a cell of each code must satisfy."""

from __future__ import annotations

from typing import Any

from tests.hosts.matrix import oracle
from tests.hosts.matrix.gate_faults import left_behind
from tests.hosts.matrix.scene import Scene

EXTRA_S = 3.0
"""A step of the tuner that was under way when the fault struck: it is bounded by the limits of the host's document."""


def judge(scene: Scene, code: str) -> list[str]:
    """Everything that was violated; empty for a cell that passed."""
    samples = scene.watch.samples()
    # A lease that nobody was left or able to take back is out of force by itself.
    died_early = (scene.fault.kills or scene.fault.act.__name__ == "_other_host_key") and scene.phase in {"p0", "p1"}
    found = [
        *oracle.o3(samples),
        *oracle.o4(scene.controller, ended_itself=scene.ended_at is not None and scene.controller.code == 0),
        *oracle.o5(scene.controller, samples, ended_at=scene.ended_at),
    ]
    if code == "L":
        return found + _loud(scene)
    found += _serves(scene, edited=scene.fault.act.__name__ == "_edit_unit")
    found += oracle.o2(scene.machine, lease_may_lie=died_early)
    return found + {"R": _restored, "-": _untouched, "C": _continued, "T": _trial_lost, "E": _edited, "O": _operator, "S": _second}[code](
        scene
    )


def _serves(scene: Scene, *, edited: bool) -> list[str]:
    """O1. A tuner that lives and is heard of restores in its own time: production serves when it ends."""
    samples = scene.watch.samples()
    found = oracle.o1(samples, scene.before, scene.machine, edited=edited)
    if scene.fault.silences and scene.phase not in {"p0", "p1"}:
        limit = oracle.t_r(scene.fault.ttl_s, boots=scene.fault.boots, pace=scene.machine.pace) + EXTRA_S * scene.machine.pace
        return found + oracle.in_time(samples, fault_at=scene.fault_at, limit_s=limit)
    since = oracle.restored_at(samples)
    if since is not None and scene.ended_at is not None and since > scene.ended_at + EXTRA_S * scene.machine.pace:
        found.append(f"O1: production served {since - scene.ended_at:.1f} s after the tuner had ended")
    return found


def _restored(scene: Scene) -> list[str]:
    return []


def _untouched(scene: Scene) -> list[str]:
    """A tuner that was hindered before it had changed anything gave up, or went on when the hindrance was gone."""
    samples = scene.watch.samples()
    if scene.controller.code == 0 and scene.healed_at and not _lasting(scene):
        until = scene.fault_at if scene.fault.boots else scene.healed_at
        return oracle.untouched([sample for sample in samples if sample.t < until], scene.before) + _complete(scene)
    if scene.fault.boots:  # a boot starts production anew, once, and nothing else does
        limit = oracle.t_r(scene.fault.ttl_s, boots=True, pace=scene.machine.pace)
        found = oracle.untouched([sample for sample in samples if sample.t < scene.fault_at], scene.before)
        return found + oracle.in_time(samples, fault_at=scene.fault_at, limit_s=limit)
    return oracle.untouched(samples, scene.before)


def _lasting(scene: Scene) -> bool:
    """Whether the fault was still there when the tuner ended."""
    return (
        scene.fault.act.__name__ in {"_other_host_key", "_edit_unit"}
        or "disk-full" in scene.folder.name
        or "unarmable" in scene.folder.name
    )


def _continued(scene: Scene) -> list[str]:
    found = _complete(scene)
    failed = [record["number"] for record in scene.controller.records if record["outcome"] != "measured"]
    found += [f"C: launch {number} was not measured" for number in failed]
    if scene.folder.name.startswith("link-short") and scene.phase in {"p4", "p5"}:
        starts = [line for line in oracle.calls(scene.controller.folder) if line["what"] == "start"]
        if len(starts) > scene.trials:
            found.append(f"C: a gap that the lease outlives cost a launch: {len(starts)} for {scene.trials} trials")
    return found + (_unjudged(scene) if scene.phase == "p6" else [])


def _trial_lost(scene: Scene) -> list[str]:
    found = _complete(scene)
    records = {record["number"]: record for record in scene.controller.records}
    struck = records.get(scene.fault.launch)
    if struck is not None and struck["outcome"] != "measured" and not struck["failure"]["cause"]:
        found.append("T: the trial failed without a cause")
    if struck is not None and struck["outcome"] == "measured" and not scene.folder.name.startswith(("load-worker", "host-disk")):
        found.append(f"T: launch {scene.fault.launch} counts as measured in spite of the fault")
    others = [number for number, record in records.items() if number != scene.fault.launch and record["outcome"] != "measured"]
    found += [f"T: launch {number} failed, too" for number in others]
    if scene.folder.name.startswith(("sandbox-", "candidate-wrong-answers")):
        found += _refused_by_the_gate(scene, struck)
    return found


def _refused_by_the_gate(scene: Scene, struck: dict[str, Any] | None) -> list[str]:
    """The gate refused the struck launch and passed all others, and nothing of what it ran got out or was left."""
    found = [] if scene.evidence is None else scene.evidence.found()
    failure = (struck or {}).get("failure") or {}
    if failure.get("kind") != "quality":
        found.append(f"T: launch {scene.fault.launch} was not refused for its answers: {failure.get('cause', 'no failure')}")
    return found + left_behind() + _unjudged(scene, struck=scene.fault.launch)


def _unjudged(scene: Scene, *, struck: int | None = None) -> list[str]:
    """Launches whose answers were not found right, though they are."""
    records = [record for record in scene.controller.records if record["number"] != struck]
    return [
        f"p6: launch {record['number']} is {record['quality']}: {'; '.join((record['quality_report'] or {}).get('reasons', ()))}"
        for record in records
        if record["outcome"] == "measured" and record["quality"] != "passed"
    ]


def _complete(scene: Scene) -> list[str]:
    """The night went to its end."""
    if scene.controller.code != 0:
        return [f"C: the tuner ended with {scene.controller.code}: {scene.controller.errors}"]
    kept = len(scene.controller.records)
    return [] if kept >= scene.trials else [f"C: {kept} of {scene.trials} launches are kept"]


def _edited(scene: Scene) -> list[str]:
    told = "changed" in scene.controller.said and "prod.service" in scene.controller.said
    return [] if told else ["E: nothing was said about the changed unit file"]


def _operator(scene: Scene) -> list[str]:
    found = [] if scene.controller.code not in (0, None) else [f"O: the tuner ended with {scene.controller.code}"]
    if not any("by hand" in error or "somebody" in error for error in scene.controller.errors):
        found.append(f"O: nothing was said about the operator: {scene.controller.errors}")
    if scene.operator_run:
        after = [sample for sample in scene.watch.samples() if sample.t > scene.healed_at + 0.3]
        if {sample.invocation for sample in after} != {scene.operator_run}:
            found.append("O: what the operator started was not left alone")
    return found


def _second(scene: Scene) -> list[str]:
    codes = sorted(controller.code if controller.code is not None else -1 for controller in scene.clients())
    return [] if codes == [0, 4] else [f"S: the tuners ended with {codes}: {[controller.errors for controller in scene.clients()]}"]


def _loud(scene: Scene) -> list[str]:
    """Production cannot start: exit code 5 says so, the host goes on trying, and succeeds once it can."""
    found = [] if scene.controller.code == oracle.NOT_RESTORED else [f"L: the tuner ended with {scene.controller.code}"]
    if not any("(" in error and "None" not in error for error in scene.controller.errors):
        found.append("L: no command for a person")
    if scene.candidate():
        found.append("L: a candidate still runs")
    scene.machine.fail_starts(0)
    scene.wait_restored(patience_s=60)
    return found + _serves_again(scene)


def _serves_again(scene: Scene) -> list[str]:
    return [*oracle.o1(scene.watch.samples(), scene.before, scene.machine), *oracle.o2(scene.machine)]
