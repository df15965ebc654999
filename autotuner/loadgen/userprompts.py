"""The user's own prompts: a JSONL file of conversations, or a log of requests with the times at which they came.

Every line is one of
    {"messages": [{"role": "user", "content": "…"}], "max_tokens": 200}          OpenAI's chat API, also inside ``{"body": …}``
    {"conversations": [{"from": "human", "value": "…"}, …]}                       ShareGPT; a file that is one JSON array is read, too
    {"prompt": "…"}                                                               a single text
    {"input_length": 6758, "output_length": 500}                                  lengths only: a text of the shipped ones is made up for it
and in a log also has ``"arrival_s": 1.25`` (seconds) or ``"timestamp"`` (seconds, or an ISO 8601 time; milliseconds where only lengths are
given, as in the Mooncake traces). The file is read by every process that needs it, so it is named with a digest of its content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from autotuner.errors import InvalidDocument, Problem, UsageError
from autotuner.loadgen.prompts import Fit, Prompt, PromptSource, nonce_of
from autotuner.loadgen.requestlines import Entry, LineError, entry_of
from autotuner.model.workload import OWN_PROMPTS

MOST_BYTES = 256 << 20
MOST_PROBLEMS = 20
MOST_REPLAYED = 500_000
"""Requests of one replay: their times travel to every load worker in one message."""


@dataclass(frozen=True, slots=True)
class UserPrompts:
    """The prompts of a file, over and over; every one begins with a nonce unless ``nonce`` is off."""

    path: str
    digest: str
    nonce: bool = True
    seed: int = 0
    fit: Fit = field(default_factory=Fit)

    @property
    def domains(self) -> tuple[str, ...]:
        """One kind: the user's own."""
        return (OWN_PROMPTS,)

    @property
    def sized(self) -> bool:
        """False: their lengths are their own, and no context is aimed at."""
        return False

    def __len__(self) -> int:
        """How many there are before they repeat."""
        return len(self._entries)

    def domain(self, index: int) -> str:
        """The user's own."""
        return OWN_PROMPTS

    def with_fit(self, fit: Fit) -> UserPrompts:
        """The same; texts that are made up for lengths are sized for another tokenizer."""
        return replace(self, fit=fit)

    @property
    def only_lengths(self) -> bool:
        """Whether some lines give lengths instead of texts, which a calibration then has to size."""
        return any(entry.input_tokens is not None for entry in self._entries)

    @property
    def longest(self) -> int:
        """Characters of the longest prompt, for a guess of what it needs."""
        return max(sum(len(message["content"]) for message in entry.messages) + 4 * (entry.input_tokens or 0) for entry in self._entries)

    def arrivals_s(self) -> tuple[float, ...]:
        """When the requests came, from the first one on, in seconds. Raises ``UsageError`` where the file has no times."""
        times = [entry.arrival_s for entry in self._entries if entry.arrival_s is not None]
        if len(times) < len(self):
            raise UsageError(f"{self.path} has requests without an arrival time", hint="use --prompts instead of --replay")
        return tuple(at - times[0] for at in times)

    def prompt(self, context: int, index: int, run: str = "") -> Prompt:
        """Prompt number ``index``; the file begins anew after its end. ``context`` has no say."""
        entries = self._entries
        entry = entries[index % len(entries)]
        if entry.input_tokens is not None:
            made = PromptSource(("rag",), self.seed, fit=self.fit).prompt(entry.input_tokens, index, run)
            return Prompt(made.text, OWN_PROMPTS, (), entry.output_tokens)
        first, *rest = entry.messages
        head = f"[{nonce_of(self.seed, index, run)}] " if self.nonce else ""
        messages = ({**first, "content": head + first["content"]}, *rest)
        text = "\n\n".join(message["content"] for message in messages)
        return Prompt(text, OWN_PROMPTS, messages, entry.output_tokens)

    @property
    def _entries(self) -> tuple[Entry, ...]:
        return _read(self.path, self.digest)


def load_prompts(path: Path, *, nonce: bool = True, seed: int = 0) -> UserPrompts:
    """The prompts of a file. Raises ``InvalidDocument`` with every problem's line and column, ``UsageError`` when it cannot be read."""
    raw = _bytes(str(path))
    prompts = UserPrompts(str(path), hashlib.sha256(raw).hexdigest(), nonce=nonce, seed=seed)
    _read(prompts.path, prompts.digest)
    return prompts


def load_replay(path: Path, *, nonce: bool = True, seed: int = 0) -> UserPrompts:
    """The requests of a log, each with its time. Raises as ``load_prompts``, and ``InvalidDocument`` where times are missing or go back."""
    prompts = load_prompts(path, nonce=nonce, seed=seed)
    if len(prompts) > MOST_REPLAYED:
        raise UsageError(f"{path} has {len(prompts)} requests, more than {MOST_REPLAYED}", hint="replay a part of it: head -n 500000")
    problems: list[Problem] = []
    before: Entry | None = None
    for entry in _read(prompts.path, prompts.digest):
        if entry.arrival_s is None:
            why, hint = "the request has no arrival time", 'add `"arrival_s": SECONDS`, or use --prompts instead of --replay'
            problems.append(Problem(file=str(path), line=entry.line, column=1, message=why, hint=hint))
        elif before is not None and before.arrival_s is not None and entry.arrival_s < before.arrival_s:
            why = f"the request came at {entry.arrival_s:g} s, before that of line {before.line} at {before.arrival_s:g} s"
            problems.append(Problem(file=str(path), line=entry.line, column=1, message=why, hint="sort the log by its times"))
        before = entry
    if problems:
        raise InvalidDocument(problems[:MOST_PROBLEMS])
    return prompts


def _bytes(path: str) -> bytes:
    try:
        file = Path(path)
        if file.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path} has more than {MOST_BYTES >> 20} MiB", hint=f"head -n 10000 {path} makes a smaller one")
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}", hint="name a file of one JSON object per line") from error


@cache
def _read(path: str, digest: str) -> tuple[Entry, ...]:
    raw = _bytes(path)
    if hashlib.sha256(raw).hexdigest() != digest:
        raise UsageError(f"{path} was changed while it was in use", hint="start again, and leave the file alone meanwhile")
    return _entries_of(raw, path)


def _entries_of(raw: bytes, path: str) -> tuple[Entry, ...]:
    entries: list[Entry] = []
    problems: list[Problem] = []
    for number, column, value in _values(raw, path, problems):
        try:
            entries.append(entry_of(value, line=number))
        except LineError as error:
            at = column(error.key)
            problems.append(Problem(file=path, line=number, column=at, message=error.message, hint=error.hint))
        if len(problems) >= MOST_PROBLEMS:
            break
    if not entries and not problems:
        problems.append(Problem(file=path, line=1, column=1, message="there is no prompt in this file", hint=LINE_HINT))
    if problems:
        raise InvalidDocument(problems)
    return tuple(entries)


LINE_HINT = 'a line looks like {"messages": [{"role": "user", "content": "…"}]}'


@dataclass(frozen=True, slots=True)
class _Column:
    """Where a key stands in a line; 1 when it is not there."""

    text: str

    def __call__(self, key: str | None) -> int:
        return 1 if key is None else self.text.find(f'"{key}"') + 1 or 1


def _values(raw: bytes, path: str, problems: list[Problem]) -> Iterator[tuple[int, _Column, object]]:
    """(line, where its keys stand, value) of every JSON value; what is none is added to ``problems``."""
    if raw.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        yield from _array(raw, path, problems)
        return
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            text = line.decode()
            yield number, _Column(text), json.loads(text)
        except UnicodeDecodeError as error:
            problems.append(
                Problem(
                    file=path, line=number, column=error.start + 1, message="the line is not UTF-8", hint="iconv -t UTF-8 converts a file"
                )
            )
        except (ValueError, RecursionError) as error:
            at = error.colno if isinstance(error, json.JSONDecodeError) else 1
            why = error.msg if isinstance(error, json.JSONDecodeError) else "it is nested too deeply"
            problems.append(Problem(file=path, line=number, column=at, message=f"the line is not JSON: {why}", hint=LINE_HINT))


def _array(raw: bytes, path: str, problems: list[Problem]) -> Iterator[tuple[int, _Column, object]]:
    try:
        values = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        problems.append(Problem(file=path, line=line, column=1, message="the file is not UTF-8", hint="iconv -t UTF-8 converts a file"))
        return
    except (ValueError, RecursionError) as error:
        line, at = (error.lineno, error.colno) if isinstance(error, json.JSONDecodeError) else (1, 1)
        problems.append(Problem(file=path, line=line, column=at, message=f"the array is not JSON: {error}", hint=LINE_HINT))
        return
    for number, value in enumerate(values, start=1):
        # Positions inside an array are not kept by the parser: the number of the entry leads there as well.
        yield number, _Column(""), value
