"""Summary: how a finished run, a preview and a study read on a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from autotuner.cli.lines import counted, duration
from autotuner.model.measurement import METRICS
from autotuner.model.recommendation import Recommendation

if TYPE_CHECKING:
    from autotuner.tuner.night import NightResult
    from autotuner.tuner.preview import Preview


def summary(result: NightResult) -> str:
    """Verdict, numbers, configuration and file per workload."""
    blocks = [recommendation_text(item.document, str(item.path)) for item in result.written]
    blocks += [f"{name}: no recommendation: {why}" for name, why in result.without.items()]
    return "\n\n".join(blocks)


def recommendation_text(document: Recommendation, path: str | None = None) -> str:
    """One recommendation in a few lines."""
    evidence, objective = document.evidence, document.evidence.objective
    metric = METRICS[objective.metric]
    mark = " (simulated)" if evidence.simulated else ""
    lines = [f"{document.metadata.workload}{mark}: {evidence.verdict}"]
    if objective.baseline is not None and objective.change_percent:
        interval = ""
        if objective.ci95_percent is not None:
            interval = f", 95 % interval {objective.ci95_percent[0]:+.1f} to {objective.ci95_percent[1]:+.1f} %"
        change = f"{metric.format(objective.baseline)} → {metric.format(objective.measured)}"
        lines.append(f"  {objective.metric}: {change} ({objective.change_percent:+.1f} %{interval})")
    else:
        lines.append(f"  {objective.metric}: {metric.format(objective.measured)}")
    lines.append("  " + (_parameters(document.spec.parameters) or "as it runs today"))
    lines.append(f"  {evidence.reason}")
    lines += [f"  {check.status}: {check.name}: {check.detail}" for check in document.checks if check.status != "pass"]
    if path:
        lines.append(f"  → {path}")
    return "\n".join(lines)


def summary_json(result: NightResult) -> dict[str, object]:
    """The same for programs."""
    return {
        "study": result.study,
        "recommendations": [{"path": str(item.path), **item.document.model_dump(mode="json")} for item in result.written],
        "without": dict(result.without),
    }


def preview_text(seen: Preview) -> str:
    """The plan of a run for a person: command lines, then launches, cells and hours."""
    mark = " (simulated)" if seen.simulated else ""
    lines = [f"study {seen.study} on {seen.host}{mark}, {_launches(seen.done)} recorded so far", ""]
    for launch in seen.launches:
        lines.append(f"{launch.move.phase}: {launch.move.config}")
        if launch.refusal:
            lines += [f"  cannot run here: {launch.refusal}", ""]
            continue
        environment = "".join(f"{name}={shlex.quote(value)} " for name, value in sorted(launch.env.items()))
        lines += [f"  {environment}{shlex.join(launch.argv)}", ""]
    lines.append("then " + ("launches until the time is used up" if seen.searched is None else f"{_launches(seen.searched)} of the search"))
    lines.append(f"then up to {_launches(seen.confirmations)} to confirm baseline and finalists, interleaved")
    lines.append(f"each launch measures {counted(len(seen.cells), 'cell')}: " + "; ".join(str(cell) for cell in seen.cells))
    source = "as seen in this study" if seen.observed else "a guess: nothing was launched yet"
    lines.append(f"about {duration(seen.seconds_per_launch)} per launch ({source}), {duration(seen.total_s)} in all")
    return "\n".join(lines)


def _launches(number: int) -> str:
    return counted(number, "launch", "launches")


def preview_json(seen: Preview) -> dict[str, object]:
    """The same for programs."""
    return {
        "host": seen.host,
        "study": seen.study,
        "simulated": seen.simulated,
        "done": seen.done,
        "launches": [
            {
                "phase": launch.move.phase.value,
                "parameters": dict(launch.move.config),
                "argv": list(launch.argv),
                "env": launch.env,
                "refusal": launch.refusal,
            }
            for launch in seen.launches
        ],
        "searched": seen.searched,
        "confirmations": seen.confirmations,
        "cells": [cell.model_dump() for cell in seen.cells],
        "workloads": [workload.name for workload in seen.workloads],
        "seconds_per_launch": seen.seconds_per_launch,
        "observed": seen.observed,
        "total_s": seen.total_s,
    }


def _parameters(values: Mapping[str, object]) -> str:
    shown = {name: ("on" if value else "off") if isinstance(value, bool) else value for name, value in values.items()}
    return " ".join(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in shown.items())
