"""The flags that people wrote, against those of the build: what is wrong with them would cost every launch."""

from __future__ import annotations

from collections.abc import Iterator

from autotuner.engines.sglang import dialect as dialects
from autotuner.engines.sglang.render import raw_args, refusals
from autotuner.engines.sglang.reserved import host_word, raw_entry
from autotuner.errors import UsageError
from autotuner.model.facts import EngineBuild
from autotuner.model.host import Host
from autotuner.model.recommendation import Check
from autotuner.model.space import SearchSpace

_NAME = "flags"


def check_flags(host: Host, build: EngineBuild, space: SearchSpace | None) -> tuple[Check, ...]:
    """A failed check for every flag of ``engine.args`` and ``raw:`` that cannot be passed on; nothing where the build's are not known."""
    if host.engine.name != "sglang" or not build.flags:
        return ()
    try:
        failed = tuple(_failed(host, build, space))
    except UsageError as error:  # no such dialect
        return (Check(name=_NAME, status="fail", detail=error.message, hint=error.hint),)
    return failed or (Check(name=_NAME, status="pass", detail=f"{build.engine} {build.version} has every flag that is passed on"),)


def _failed(host: Host, build: EngineBuild, space: SearchSpace | None) -> Iterator[Check]:
    dialect = dialects.of(host, space, build.flags)
    written = {f"engine.args of host {host.name}": host.engine.args}
    for word in host.engine.args:
        key = host_word(word, build.flags)
        if key is not None:
            yield _check(f"{word} in engine.args of host {host.name} is set by the tuner, from {key}", f"remove it, and write {key}")
    if space is not None:
        origin = f"raw of search space {space.name}"
        written[origin] = raw_args(space.raw, ())
        for name, value in space.raw.items():
            wrong = raw_entry(name, value, space, build.flags)
            if wrong is not None:
                yield _check(f"{origin}: {wrong[0]}", wrong[1])
    for origin, args in written.items():
        for found in refusals(args, dialect, build, origin):
            yield _check(found.message, f"correct {origin}: {found.hint}")


def _check(detail: str, hint: str) -> Check:
    return Check(name=_NAME, status="fail", detail=detail, hint=hint)
