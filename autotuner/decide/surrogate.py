"""Surrogate: a small regression of one metric over configurations and cells (the only door to scikit-learn)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from autotuner.model.configuration import Configuration
from autotuner.model.trial import TrialRecord
from autotuner.model.workload import Cell

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sklearn.ensemble import ExtraTreesRegressor

MIN_CONFIGURATIONS = 4
"""Below this a regression over configurations only repeats what was measured."""
_TREES = 100
_FOLDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A predicted value in the metric's unit; ``sd`` is relative (standard deviation of the logarithm)."""

    mean: float
    sd: float


class Surrogate:
    """Regression of the logarithm of a metric on concepts, context and concurrency, over all cells of all measured trials.

    Extremely randomised trees: they take mixed and conditional parameters as they are, and never extrapolate beyond what was measured.
    """

    def __init__(self, trials: Iterable[TrialRecord], metric: str, *, seed: int = 0) -> None:
        """Fit. Raises ``ValueError`` with fewer than ``MIN_CONFIGURATIONS`` measured configurations."""
        from sklearn.feature_extraction import DictVectorizer

        rows = [
            (_features(trial.config, cell.context, cell.concurrency), math.log(cell.metrics[metric]), trial.config.digest)
            for trial in trials
            if trial.measured
            for cell in trial.cells
            if cell.metrics.get(metric, 0) > 0
        ]
        self.metric = metric
        self._seed = seed
        self._groups = [digest for _, _, digest in rows]
        self.configurations = len(set(self._groups))
        if self.configurations < MIN_CONFIGURATIONS:
            msg = f"{self.configurations} configurations were measured, {MIN_CONFIGURATIONS} are needed"
            raise ValueError(msg)
        self._vectorizer = DictVectorizer(sparse=False)
        self._x: NDArray[np.float64] = self._vectorizer.fit_transform([features for features, _, _ in rows])
        self._y = np.array([value for _, value, _ in rows])
        self._model = self._fit(self._x, self._y)

    def predict(self, configs: Sequence[Configuration], cell: Cell) -> list[Prediction]:
        """The metric at one operating point, for each configuration."""
        x = self._vectorizer.transform([_features(config, cell.context, cell.concurrency) for config in configs])
        each = np.stack([tree.predict(x) for tree in self._model.estimators_])
        return [Prediction(mean=math.exp(mean), sd=float(sd)) for mean, sd in zip(each.mean(axis=0), each.std(axis=0), strict=True)]

    def cross_validated_error_percent(self) -> float:
        """Median absolute error in percent on configurations that the model has not seen (groups of whole configurations left out)."""
        from sklearn.model_selection import GroupKFold

        folds = GroupKFold(n_splits=min(_FOLDS, self.configurations))
        errors: list[float] = []
        for train, test in folds.split(self._x, self._y, self._groups):
            guess = self._fit(self._x[train], self._y[train]).predict(self._x[test])
            errors.extend(abs(math.exp(guessed - true) - 1) * 100 for guessed, true in zip(guess, self._y[test], strict=True))
        return median(errors)

    def _fit(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> ExtraTreesRegressor:
        from sklearn.ensemble import ExtraTreesRegressor

        return ExtraTreesRegressor(n_estimators=_TREES, random_state=self._seed, n_jobs=1).fit(x, y)


def starts_probability(trials: Iterable[TrialRecord], configs: Sequence[Configuration], *, seed: int = 0) -> list[float]:
    """Probability that each configuration starts on this host, learnt from launches that did and did not; 1 when none failed."""
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.feature_extraction import DictVectorizer

    known = [trial for trial in trials if trial.outcome in ("measured", "infeasible")]
    labels = [trial.measured for trial in known]
    if len(set(labels)) < 2:
        return [1.0] * len(configs)
    vectorizer = DictVectorizer(sparse=False)
    x = vectorizer.fit_transform([_features(trial.config, 1, 1) for trial in known])
    forest = ExtraTreesClassifier(n_estimators=_TREES, random_state=seed, n_jobs=1).fit(x, labels)
    column = list(forest.classes_).index(True)
    guess = forest.predict_proba(vectorizer.transform([_features(config, 1, 1) for config in configs]))
    return [float(row[column]) for row in guess]


def _features(config: Configuration, context: int, concurrency: int) -> dict[str, float | str]:
    """Numbers as they are, everything else one-hot; an inactive parameter has neither."""
    features: dict[str, float | str] = {"cell:context": math.log2(context), "cell:concurrency": math.log2(concurrency)}
    for name, value in config.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            features[name] = str(value)
        else:
            features[f"{name}#"] = math.log2(value) if value > 1 else float(value)
            features[f"{name}:set"] = 1.0
    for argument in config.extra_args:
        features[f"argument:{argument}"] = 1.0
    return features
