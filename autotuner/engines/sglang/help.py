"""What an engine build accepts, read from its ``--help`` page."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

_INVOCATION = re.compile(r"^ {1,4}(?P<line>-{1,2}[A-Za-z].*)$")
_OPTION = re.compile(r"(?P<flag>--?[A-Za-z][\w-]*)(?:[ =]\[?(?P<choices>\{[^}]*\}))?")
_USAGE_OPTION = re.compile(r"(?:^|[\[\s(|])(?P<flag>--[A-Za-z][\w-]*)(?:[ =]\[?(?P<choices>\{[^}]*\}))?")


def parse_help(text: str) -> dict[str, tuple[str, ...]]:
    """Every option string of an argparse page → its choices, ``()`` where any value (or none) is accepted.

    Aliases share their choices: before Python 3.13 the page repeats them after each alias, since then they stand once, after the last.
    """
    flags: dict[str, tuple[str, ...]] = {}
    usage, body = _usage_and_body(text)
    for match in _USAGE_OPTION.finditer(usage):
        flags[match["flag"]] = _choices(match["choices"])
    for line in body:
        found = _INVOCATION.match(line)
        if found is not None:
            flags.update(_aliases(found["line"]))
    return flags


def _usage_and_body(text: str) -> tuple[str, list[str]]:
    lines = text.splitlines()
    start = next((index for index, line in enumerate(lines) if line.lstrip().startswith("usage:")), None)
    if start is None:
        return "", lines
    end = next((index for index in range(start, len(lines)) if not lines[index].strip()), len(lines))
    return "\n".join(lines[start:end]), lines[end:]


def _aliases(line: str) -> dict[str, tuple[str, ...]]:
    """``-a X, --all X   help`` → both names; the help begins after two spaces that follow an invocation."""
    invocation = re.split(r"(?<!,)\s{2,}", _outside_braces(line), maxsplit=1)[0]
    options = [(match["flag"], _choices(match["choices"])) for match in _OPTION.finditer(line[: len(invocation)]) if _begins(line, match)]
    shared = next((choices for _, choices in options if choices), ())
    return {flag: choices or shared for flag, choices in options}


def _begins(line: str, match: re.Match[str]) -> bool:
    return match.start() == 0 or line[: match.start()].endswith(", ")


def _outside_braces(line: str) -> str:
    """The line with the text inside braces blanked out, so that spaces in choices are not taken for the end of an invocation."""
    return re.sub(r"\{[^}]*\}", lambda match: "{" + "x" * (len(match[0]) - 2) + "}", line)


def _choices(braces: str | None) -> tuple[str, ...]:
    return tuple(item.strip() for item in braces[1:-1].split(",")) if braces else ()


def near_misses(name: str, known: Iterable[str], renames: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """At most two names that may have been meant: a known rename first, then those spelled alike."""
    names = sorted(known)
    renamed = (renames or {}).get(name)
    first = [renamed] if renamed in names else []
    alike = difflib.get_close_matches(name, names, n=2, cutoff=0.8)
    return tuple(dict.fromkeys([*first, *alike]))[:2]
