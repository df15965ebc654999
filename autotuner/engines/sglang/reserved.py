"""Reserved flags: what the tuner sets itself or a concept stands for, and so nothing else may set."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from autotuner.engines.sglang.argv import is_flag, resolve, split
from autotuner.engines.sglang.dialect import Dialect, load, names
from autotuner.engines.sglang.reading import DRAFTERS
from autotuner.engines.sglang.render import raw_args
from autotuner.model.document import Scalar
from autotuner.model.space import SearchSpace

MEASURING = ("--enable-metrics", "--enable-cache-report")
"""Flags that every launch gets because measuring needs them."""
OF_HOST: Mapping[str, str] = {
    "--model-path": "model.path",
    "--model": "model.path",
    "--host": "endpoint.address",
    "--port": "endpoint.port",
    "--served-model-name": "model.served_name",
    "--context-length": "model.context_length",
    **dict.fromkeys(DRAFTERS, "model.drafter"),
}
"""Flag → the key of the host document that it is written from."""


def host_word(word: str, known: Iterable[str] | None = None) -> str | None:
    """Why a word of ``engine.args`` may not stand there: the key to write instead; ``None`` where it may.

    ``known`` are the flags of the build, for abbreviations.
    """
    return next((OF_HOST[flag] for flag in _flags((word,), known) if flag in OF_HOST), None)


def raw_entry(name: str, value: Scalar, space: SearchSpace, known: Iterable[str] | None = None) -> tuple[str, str] | None:
    """Why an entry of ``raw:`` may not stand there: (what is wrong, what to do instead); ``None`` where it may."""
    flag = name if name.startswith("-") else f"--{name}"
    if not is_flag(flag):
        return f"{flag!r} is not one flag", "write the flag as the key and its value behind the colon, true for a flag without one"
    concepts = _concepts(space)
    for said in _flags((flag, *raw_args({name: value}, ())), known):
        if said in OF_HOST:
            return f"{said} is set by the tuner, from {OF_HOST[said]} of the host", f"remove it here, and write {OF_HOST[said]} of the host"
        if said in MEASURING:
            return f"{said} is set by the tuner on every launch", "remove it"
        if said in concepts:
            names_of = concepts[said]
            return (
                f"{said} is what the concept {' or '.join(names_of)} stands for",
                f"write {names_of[0]} under fixed: or parameters: instead",
            )
    return None


def _flags(words: Iterable[str], known: Iterable[str] | None) -> tuple[str, ...]:
    """Flags that these words give, abbreviations written out where the build's flags are known."""
    said = [group.flag for group in split(tuple(words))]
    return tuple(said if known is None else [resolve(flag, known) or flag for flag in said])


def _concepts(space: SearchSpace) -> dict[str, tuple[str, ...]]:
    """Flag → the concepts that it writes, in the space's dialect, or in any where none is named."""
    named: Collection[str] = (space.dialect,) if space.dialect in names() else names()
    found: dict[str, tuple[str, ...]] = {}
    for dialect in (load(str(name)) for name in named):
        for flag, concept in _writes(dialect, {*space.parameters, *space.fixed}):
            found[flag] = tuple(dict.fromkeys((*found.get(flag, ()), concept)))
    return found


def _writes(dialect: Dialect, used: Collection[str]) -> Iterable[tuple[str, str]]:
    for word in dialect.words.values():
        # What decides a concept beside other things is left to those who do not use the concept.
        for flag in word.flags if word.concept in used else word.flags - word.unsaid_by:
            yield flag, word.concept
