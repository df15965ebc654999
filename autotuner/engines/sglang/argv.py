"""Command lines as groups: a flag with the values that follow it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

_NUMBER = re.compile(r"-\d+(\.\d*)?|-\.\d+")


@dataclass(frozen=True, slots=True)
class Group:
    """One flag with its values; ``tokens`` are the arguments as they were written (``--a=b`` or ``--a b``)."""

    flag: str
    values: tuple[str, ...]
    tokens: tuple[str, ...]


def is_flag(token: str) -> bool:
    """Whether argparse takes ``token`` for an option: a leading dash, but not a negative number, a lone dash or a text with spaces."""
    return len(token) > 1 and token.startswith("-") and " " not in token.split("=", 1)[0] and _NUMBER.fullmatch(token) is None


def split(tokens: Sequence[str]) -> tuple[Group, ...]:
    """Group a command line that starts with a flag; words before the first flag are left out."""
    groups: list[list[str]] = []
    for token in tokens:
        if is_flag(token):
            groups.append([token])
        elif groups:
            groups[-1].append(token)
    return tuple(_group(words) for words in groups)


def join(groups: Iterable[Group]) -> tuple[str, ...]:
    """The arguments of these groups, as they were written."""
    return tuple(token for group in groups for token in group.tokens)


def _group(words: list[str]) -> Group:
    flag, has_value, value = words[0].partition("=")
    values = (value, *words[1:]) if has_value else tuple(words[1:])
    return Group(flag, values, tuple(words))


def resolve(flag: str, known: Iterable[str]) -> str | None:
    """The option that argparse takes ``flag`` for: itself, or the only one that it abbreviates; ``None`` when there is none."""
    names = set(known)
    if flag in names:
        return flag
    longer = [name for name in names if name.startswith(flag)] if flag.startswith("--") else []
    return longer[0] if len(longer) == 1 else None


def after_command(argv: Sequence[str], modules: Sequence[str]) -> tuple[str, ...]:
    """The engine's own arguments: what follows ``-m MODULE`` or ``NAME serve``, else what begins with the first ``--flag``.

    A server may run under wrappers (``env``, ``numactl``, a shell's ``exec``), whose words come before.
    """
    for index, (before, word) in enumerate(pairwise(argv)):
        started = (before == "-m" and word in modules) or (_name(before) == "sglang" and word == "serve")
        if started or _name(word) == "launch_server.py":
            return tuple(argv[index + 2 :])
    first = next((index for index, word in enumerate(argv) if word.startswith("--")), len(argv))
    return tuple(argv[first:])


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]
