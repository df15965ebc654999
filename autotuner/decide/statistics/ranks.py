"""Comparison by ranks, which does not care how values are distributed."""

from __future__ import annotations

from collections.abc import Sequence

from autotuner.decide.statistics.samples import finite


def mann_whitney(a: Sequence[float], b: Sequence[float]) -> float:
    """How often two sets of independent values from one distribution differ this much in their ranks or more, two-sided.

    For values within one launch (are these answers slower than those?), never for a verdict about configurations, whose launches
    ``compare`` judges: four against four cannot go below 0.029. Exact for small sets without ties, else the normal approximation with
    correction for ties. Source: Mann and Whitney, Annals of Mathematical Statistics 18 (1947) 50-60, as scipy has it.
    Raises ``ValueError`` when either side is empty or has a value that is not finite.
    """
    from scipy.stats import mannwhitneyu

    return min(1.0, float(mannwhitneyu(finite(a), finite(b), alternative="two-sided").pvalue))
