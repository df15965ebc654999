"""Source: a document as plain values, with the place in the file of every one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autotuner.errors import Problem

Path = tuple[str | int, ...]
"""Keys and indices from the top of the document: ``("parameters", "tp", "choices", 0)``."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file, both numbers from 1."""

    line: int
    column: int


@dataclass(slots=True)
class Source:
    """What a file holds. ``value`` consists of what JSON knows: mappings, lists and scalars."""

    file: str
    value: object = None
    problems: list[Problem] = field(default_factory=list)
    values_at: dict[Path, Mark] = field(default_factory=dict)
    keys_at: dict[Path, Mark] = field(default_factory=dict)
    text_offset: dict[Path, int] = field(default_factory=dict)
    """Columns between the mark of a one-line text and its first character: 1 for quoted ones."""

    refused: set[Path] = field(default_factory=set)
    """Paths whose value the reader refused; they hold ``None`` and are reported already."""

    def report(self, at: Mark, message: str, hint: str, *, severity: str = "error") -> None:
        """Add a problem; ``hint`` is the next edit or command to try."""
        self.problems.append(
            Problem(file=self.file, line=at.line, column=at.column, message=message, hint=hint, severity=severity),
        )

    def error(self, path: Path, message: str, hint: str, *, key: bool = False) -> None:
        """Add an error at the value at ``path``, or at its key."""
        self.report(self.mark(path, key=key), message, hint)

    def warning(self, path: Path, message: str, hint: str, *, key: bool = False) -> None:
        """Add a warning at the value at ``path``, or at its key."""
        self.report(self.mark(path, key=key), message, hint, severity="warning")

    def mark(self, path: Path, *, key: bool = False) -> Mark:
        """Where ``path`` is; the nearest thing around it when it is not in the file."""
        first, second = (self.keys_at, self.values_at) if key else (self.values_at, self.keys_at)
        for length in range(len(path), -1, -1):
            part = path[:length]
            # What is missing is reported at the key of the part that lacks it.
            places = (first, second) if length == len(path) else (self.keys_at, self.values_at)
            for place in places:
                if part in place:
                    return place[part]
        return Mark(1, 1)

    def get(self, *path: str | int) -> object:
        """The value at ``path``; ``None`` when nothing is there."""
        value = self.value
        for step in path:
            if isinstance(value, dict):
                value = value.get(step)
            elif isinstance(value, list) and isinstance(step, int) and step < len(value):
                value = value[step]
            else:
                return None
        return value

    def mapping(self, *path: str | int) -> Mapping[str, object]:
        """The mapping at ``path``; empty when there is none."""
        value = self.get(*path)
        return value if isinstance(value, dict) else {}

    def items(self, *path: str | int) -> list[object]:
        """The list at ``path``; empty when there is none."""
        value = self.get(*path)
        return value if isinstance(value, list) else []

    def mappings(self, *path: str | int) -> Iterator[tuple[int, Mapping[str, object]]]:
        """Index and value of every mapping in the list at ``path``."""
        for index, value in enumerate(self.items(*path)):
            if isinstance(value, dict):
                yield index, value

    def texts(self) -> Iterator[tuple[Path, str]]:
        """Every text in the document, with its place."""
        waiting: list[tuple[Path, object]] = [((), self.value)]
        while waiting:
            path, value = waiting.pop()
            if isinstance(value, str):
                yield path, value
            elif isinstance(value, dict):
                waiting += [((*path, key), inner) for key, inner in value.items()]
            elif isinstance(value, list):
                waiting += [((*path, index), inner) for index, inner in enumerate(value)]

    @property
    def failed(self) -> bool:
        """Whether an error was found."""
        return any(problem.severity == "error" for problem in self.problems)
