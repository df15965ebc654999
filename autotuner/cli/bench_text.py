"""What a bench prints: a table of points with intervals, and under each of them what is to be known before its numbers are used."""

from __future__ import annotations

from collections.abc import Sequence

from autotuner.bench.endpoint import Endpoint
from autotuner.bench.session import BenchCell
from autotuner.decide.statistics import Interval
from autotuner.model.measurement import METRICS

COLUMNS: tuple[tuple[str, str], ...] = (
    ("output_tok_s", "output tok/s"),
    ("user_tok_s", "tok/s per user"),
    ("ttft_p50_ms", "TTFT p50 ms"),
    ("ttft_p95_ms", "TTFT p95 ms"),
    ("tpot_p50_ms", "TPOT p50 ms"),
    ("e2e_p50_ms", "E2E p50 ms"),
    ("acceptance_length", "accepted tok/step"),
    ("acceptance_rate", "acceptance rate"),
)
_EXACT = {"acceptance_length", "acceptance_rate"}


def table(cells: Sequence[BenchCell]) -> str:
    """The points below each other, columns that nobody has left out."""
    columns = [(name, title) for name, title in COLUMNS if any(name in cell.result.metrics for cell in cells)]
    head = ["context", "load", *(title for _, title in columns), "requests"]
    rows = [[_context(cell), _load(cell), *(_value(cell, name) for name, _ in columns), _requests(cell)] for cell in cells]
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    lines = [_line(head, widths)]
    for cell, row in zip(cells, rows, strict=True):
        lines.append(_line(row, widths))
        lines += [f"    ! {warning}" for warning in cell_warnings(cell)]
    return "\n".join(lines)


def cell_warnings(cell: BenchCell) -> list[str]:
    """The worst first."""
    client = cell.result.client
    if not cell.answered:
        return ["no request was answered", *cell.warnings]
    invalid = [] if client is None else [f"INVALID, the client was measured and not the server: {why}" for why in client.invalid]
    return [*invalid, *(warning for warning in cell.warnings if not warning.startswith(("invalid client", "no 95th percentile")))]


def headline(endpoint: Endpoint, label: str) -> str:
    """What is measured, and what cannot be seen of it."""
    engine = f", counters of {endpoint.engine}" if endpoint.engine else ""
    return "\n".join([f"{label}: {endpoint.model} at {endpoint.base_url}{engine}", *(f"note: {note}" for note in endpoint.notes)])


def metrics_table() -> str:
    """The registry: name, unit, which way is better, and the definition."""
    width, unit = max(map(len, METRICS)), max(len(metric.unit) for metric in METRICS.values())
    return "\n".join(
        f"{metric.name:<{width}}  {metric.unit:<{unit}}  {metric.direction.value:<6}  {metric.definition}" for metric in METRICS.values()
    )


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _context(cell: BenchCell) -> str:
    if cell.lengths is not None:
        return str(cell.point.cell.context)
    median = cell.result.prompt_tokens_p50
    return "own" if median is None else f"own ~{median:.0f}"


def _load(cell: BenchCell) -> str:
    point = cell.point
    if point.load == "closed":
        return f"C={point.cell.concurrency}"
    return f"{point.load} {point.rate:.3g}/s"


def _requests(cell: BenchCell) -> str:
    return f"{cell.result.requests}" + (f", {cell.result.failed} failed" if cell.result.failed else "")


def _value(cell: BenchCell, name: str) -> str:
    value = cell.result.metrics.get(name)
    if value is None:
        return "–"
    return f"{number(value, name)}{_spread(cell.intervals.get(name), name)}"


def _spread(span: Interval | None, name: str) -> str:
    """Even for intervals that lie evenly around their value, both ends: order statistics do not."""
    return "" if span is None else f" [{number(span.low, name)}, {number(span.high, name)}]"


def number(value: float, name: str) -> str:
    """As many digits as make sense at this size."""
    if name in _EXACT:
        return f"{value:.2f}"
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
