"""A cell's result together with what its server and GPUs said over the same window."""

from __future__ import annotations

from dataclasses import replace

from autotuner.model.measurement import CellResult, ServerReport


def with_server(result: CellResult, report: ServerReport) -> CellResult:
    """The result with the report, the metrics that need both, and the report's warnings among its own."""
    source = result.server.acceptance_source if result.server is not None else None
    kept = replace(report, acceptance_source=report.acceptance_source or source)
    return replace(
        result, server=kept, metrics={**result.metrics, **_energy(result, report)}, warnings=(*result.warnings, *report.warnings)
    )


def _energy(result: CellResult, report: ServerReport) -> dict[str, float]:
    """Power of all of the engine's GPUs, and energy per token; nothing where one of them does not tell its power."""
    watts = [gpu.power_w for gpu in report.gpus]
    known = [value for value in watts if value is not None]
    if not known or len(known) < len(watts):
        return {}
    power = sum(known)
    rate = result.get("output_tok_s")
    return {"power_w": power, **({"joules_per_token": power / rate} if rate else {})}
