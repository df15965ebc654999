"""Launches of a study as Optuna's trials."""

from __future__ import annotations

from collections.abc import Mapping

from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotuner.decide.objective import slo_excess, workload_value
from autotuner.model.configuration import Configuration
from autotuner.model.document import Scalar
from autotuner.model.events import Phase
from autotuner.model.space import SearchSpace
from autotuner.model.trial import TrialRecord
from autotuner.model.workload import Workload
from autotuner.study.codec import Facts, distribution, parameters_of

CAUSE = "cause"
"""Attribute of a failed trial: why, as a sentence."""
_NUMBER, _PHASE, _DIGEST = "launch", "phase", "configuration"

Key = tuple[object, object]


def key_of(trial: FrozenTrial) -> Key | None:
    """Which launch a trial is: its number and the digest of its configuration; ``None`` for a trial of somebody else's."""
    attributes = trial.user_attrs
    return (attributes[_NUMBER], attributes.get(_DIGEST)) if _NUMBER in attributes else None


class Launches:
    """Makes trials for one search space and its workloads. Confirmations, and what the space cannot express, are none."""

    def __init__(self, space: SearchSpace, facts: Facts, workloads: tuple[Workload, ...]) -> None:
        self._space = space
        self._facts = facts
        self._workloads = workloads

    def values(self, record: TrialRecord) -> dict[str, float]:
        """Workload → value of a measured launch, in the objective's own unit; a workload without its cells is absent."""
        found = {workload.name: workload_value(workload, record.cells) for workload in self._workloads} if record.measured else {}
        return {name: value for name, value in found.items() if value is not None}

    def running(self, number: int, config: Configuration, phase: Phase) -> FrozenTrial | None:
        """A launch under way."""
        params = self._params(config, phase)
        if params is None:
            return None
        return create_trial(
            state=TrialState.RUNNING,
            params=params,
            distributions=self._distributions(params),
            user_attrs=_attributes(number, config, phase),
        )

    def finished(self, record: TrialRecord) -> FrozenTrial | None:
        """A launch with its outcome.

        What cannot run is pruned with a constraint, never a score: samplers ignore failed trials and believe scores.
        """
        params = self._params(record.config, record.phase)
        if params is None:
            return None
        attributes = _attributes(record.number, record.config, record.phase)
        values, constraints, state = None, {}, TrialState.PRUNED
        found = self.values(record)
        missing = [workload.name for workload in self._workloads if workload.name not in found]
        if record.outcome in ("transient", "host-broken"):
            state = TrialState.FAIL
            attributes[CAUSE] = record.failure.cause if record.failure else record.outcome
        elif record.failure is not None:
            constraints = {record.failure.kind: 1.0}
        elif missing:
            constraints = {"no-value:" + ",".join(missing): 1.0}
        else:
            state, values = TrialState.COMPLETE, [found[workload.name] for workload in self._workloads]
            constraints = {
                f"{workload.name}:{name}": excess
                for workload in self._workloads
                for name, excess in slo_excess(workload, record.cells).items()
            }
        return create_trial(
            state=state,
            values=values,
            params=params,
            distributions=self._distributions(params),
            user_attrs=attributes,
            constraints=constraints,
        )

    def _params(self, config: Configuration, phase: Phase) -> dict[str, Scalar] | None:
        return None if phase is Phase.CONFIRM else parameters_of(config, self._space, self._facts)

    def _distributions(self, params: Mapping[str, Scalar]) -> dict[str, BaseDistribution]:
        return {name: distribution(self._space.parameters[name]) for name in params}


def _attributes(number: int, config: Configuration, phase: Phase) -> dict[str, object]:
    return {_NUMBER: number, _PHASE: phase.value, _DIGEST: config.digest}
