"""Console: shows a run while it happens – a progress bar on a terminal, lines elsewhere, JSON on request."""

from __future__ import annotations

import json as jsonlib
import time
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from autotuner.cli.lines import Progress, opened_line, outcome_word, trial_line
from autotuner.model.configuration import Configuration
from autotuner.model.events import Event, Notice, StudyOpened, TrialEnded
from autotuner.model.outcome import Outcome

if TYPE_CHECKING:
    from rich.console import RenderableType


class Watcher(Protocol):
    """A ``Listener`` that holds the terminal between ``with`` and its end."""

    def __call__(self, event: Event, /) -> None:
        """Show what happened."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /) -> None: ...


def listener(
    stream: TextIO,
    *,
    json: bool,
    tty: bool,
    color: bool = True,
    metrics: Mapping[str, str] | None = None,
    simulated: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Watcher:
    """The listener that fits the stream; use it as a context manager so that a terminal is left as it was.

    ``metrics``: workload → name of its objective metric, for units. ``simulated``: of the host, for events before a study is open.
    """
    if json:
        return JsonLines(stream, simulated=simulated)
    if tty:
        return LiveDisplay(stream, metrics=metrics or {}, color=color, clock=clock)
    return PlainLines(stream, metrics=metrics or {})


class _Open:
    """A watcher that has nothing to give back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None


class JsonLines(_Open):
    """One JSON object per event; every one says whether it is simulated."""

    def __init__(self, stream: TextIO, *, simulated: bool) -> None:
        self._stream = stream
        self._simulated = simulated

    def __call__(self, event: Event) -> None:
        """Write the event."""
        if isinstance(event, StudyOpened):
            self._simulated = event.simulated
        self._stream.write(jsonlib.dumps(as_json(event) | {"simulated": self._simulated}, ensure_ascii=False) + "\n")
        self._stream.flush()


class PlainLines(_Open):
    """One line per trial and per notice, for logs."""

    def __init__(self, stream: TextIO, *, metrics: Mapping[str, str]) -> None:
        self._stream = stream
        self._metrics = metrics
        self._progress = Progress()

    def __call__(self, event: Event) -> None:
        """Write a line where the event is worth one."""
        self._progress = self._progress.after(event)
        line = line_of(event, metrics=self._metrics, simulated=self._progress.simulated)
        if line is not None:
            self._stream.write(line + "\n")
            self._stream.flush()


class LiveDisplay:
    """Lines of ended trials scrolling by, under them the bar, the headline and what the running trial is doing."""

    def __init__(self, stream: TextIO, *, metrics: Mapping[str, str], color: bool, clock: Callable[[], float]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream, force_terminal=True, no_color=not color, highlight=False, soft_wrap=True)
        self._metrics = metrics
        self._progress = Progress()
        self._clock = clock
        self._since = clock()
        self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        """Print what is worth a line, and bring the display up to date."""
        before = self._progress.running
        self._progress = self._progress.after(event)
        if self._progress.running is not before:
            self._since = self._clock()
        line = line_of(event, metrics=self._metrics, simulated=self._progress.simulated)
        if line is not None:
            self._console.print(line, style=_style(event), markup=False)
        self._live.refresh()

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        running = self._progress.running
        head = Table.grid(padding=(0, 1))
        cells: list[RenderableType] = [
            Text(self._progress.headline(since_s=self._clock() - self._since), style="bold", overflow="ellipsis")
        ]
        if running is not None and running.planned:
            cells.insert(0, ProgressBar(total=running.planned, completed=running.done, width=20))
        head.add_row(*cells)
        return Group(head, Text(self._progress.subline(), style="dim", no_wrap=True, overflow="ellipsis"))


def line_of(event: Event, *, metrics: Mapping[str, str], simulated: bool) -> str | None:
    """The line that an event is worth in a log, or ``None``."""
    match event:
        case StudyOpened():
            return opened_line(event)
        case TrialEnded():
            return trial_line(event, metrics=metrics, simulated=simulated)
        case Notice():
            return f"warning: {event.message}" if event.level == "warning" else event.message
        case _:
            return None


def _style(event: Event) -> str:
    if isinstance(event, Notice) and event.level == "warning":
        return "yellow"
    if isinstance(event, TrialEnded) and outcome_word(event.outcome) in {"transient", "host broken"}:
        return "red"
    return ""


def as_json(event: Event) -> dict[str, object]:
    """The event as plain values, its kind under ``event``."""
    fields = {name: _plain(getattr(event, name)) for name in event.__dataclass_fields__}
    return {"event": type(event).__name__} | fields


def _plain(value: object) -> object:
    if isinstance(value, Configuration):
        return {"parameters": dict(value), "extra_args": list(value.extra_args), "digest": value.digest}
    if is_dataclass(value) and not isinstance(value, type):
        plain = {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
        return plain | ({"outcome": outcome_word(value)} if isinstance(value, Outcome) else {})
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
