"""From the command line of a running server back to concepts; what no concept stands for is kept verbatim."""

from __future__ import annotations

from collections.abc import Sequence

from autotuner.engines.sglang.argv import Group, join, split
from autotuner.engines.sglang.dialect import DRAFTER, VALUE, Dialect, Form, Word
from autotuner.model.configuration import Configuration
from autotuner.model.document import Scalar
from autotuner.model.host import Host

EVERY_LAUNCH = (
    "--model-path",
    "--model",
    "--host",
    "--port",
)
"""Flags that every launch gets from the host's document."""
DRAFTERS = ("--speculative-draft-model-path", "--speculative-draft-model")
SECRETS = ("--api-key", "--admin-api-key")
"""Values that are never written down."""


def own_groups(args: Sequence[str], host: Host, measuring: Sequence[str]) -> tuple[Group, ...]:
    """The groups that say something about the configuration: not those that every launch has anyway."""
    left_out = {*EVERY_LAUNCH, *SECRETS, *measuring}
    left_out |= {"--served-model-name"} if host.model.served_name else set()
    left_out |= {"--context-length"} if host.model.context_length else set()
    groups = [group for group in split(args) if group.flag not in left_out]
    for given in split(host.engine.args):
        match = next((group for group in groups if (group.flag, group.values) == (given.flag, given.values)), None)
        if match is not None:
            groups.remove(match)
    return tuple(groups)


def read(groups: Sequence[Group], dialect: Dialect) -> Configuration:
    """Concepts of these groups, the rest in ``extra_args``.

    Where a value is written by writing nothing (``spec: off``, ``graphs: true``, ``window: none``), absence is read as that value. A flag
    that is given twice counts as argparse counts it: the last one wins.
    """
    rest = list(groups)
    values: dict[str, Scalar] = {}
    for word in sorted(dialect.words.values(), key=lambda word: bool(word.only_with)):
        if not word.meant(values):
            continue
        found = _find(word, rest)
        if found is not None:
            values[word.concept], flags = found
            rest = [group for group in rest if group.flag not in flags]
        elif word.absent is not None and not any(group.flag in word.flags for group in rest):
            values[word.concept] = word.absent
    if _brings_drafter(dialect.words["spec"], values.get("spec")):
        rest = [group for group in rest if group.flag not in DRAFTERS]
    return Configuration.of(values, join(rest))


def _brings_drafter(word: Word, spec: Scalar | None) -> bool:
    """Whether a launch with this speculation names the host's drafter, or needs none: only then the live one can be left out."""
    forms = (word.forms_of(spec) if spec is not None else None) or ()
    return any(not form or any(group.values == (DRAFTER,) for group in form) for form in forms)


def _find(word: Word, groups: Sequence[Group]) -> tuple[Scalar, frozenset[str]] | None:
    last = {group.flag: group for group in groups}
    for value, form in word.readable():
        said = _match(word, form, last)
        if said is not None:
            return (said if value is None else value), frozenset(group.flag for group in form)
    return None


def _match(word: Word, form: Form, last: dict[str, Group]) -> Scalar | None:
    """The value at the placeholder, ``True`` where the form has none, ``None`` when the command line does not say this form."""
    said: Scalar | None = True
    for wanted in form:
        if wanted.values == (DRAFTER,):
            continue
        given = last.get(wanted.flag)
        if given is None or len(given.values) != len(wanted.values):
            return None
        for template, text in zip(wanted.values, given.values, strict=True):
            if template == VALUE:
                said = word.parse(text)
            elif template.lower() != text.lower():
                return None
    return said
