"""What a host document expects of the hardware, against what was found."""

from __future__ import annotations

from autotuner.errors import Refused, UsageError
from autotuner.model.document import Scalar
from autotuner.model.facts import HostFacts
from autotuner.model.host import Host
from autotuner.model.near import did_you_mean


def expectable(facts: HostFacts) -> dict[str, Scalar | None]:
    """The facts that ``expect:`` may name: those of expressions, and the names of GPU, driver, link and engine."""
    return {
        **facts.names(),
        "gpu": facts.gpus[0].name if facts.gpus else None,
        "driver": facts.driver,
        "link": facts.link,
        "engine": facts.build.engine,
        "engine_version": facts.build.version,
        "architecture": facts.model.architecture,
    }


def check_expected(host: Host, facts: HostFacts) -> None:
    """Raise ``Refused`` naming everything that is otherwise than expected, ``UsageError`` for a fact that does not exist."""
    found = expectable(facts)
    for name in host.expect:
        if name not in found:
            raise UsageError(f"host {host.name}: expect: {name} is not a fact", hint=did_you_mean(name, found, otherwise="facts"))
    wrong = [f"{name}: expected {wanted}, found {found[name]}" for name, wanted in host.expect.items() if not _same(wanted, found[name])]
    if wrong:
        raise Refused(
            f"host {host.name} is not what its document expects: {'; '.join(wrong)}", hint="correct `expect:`, or look at the host"
        )


def _same(wanted: Scalar, found: Scalar | None) -> bool:
    if isinstance(wanted, bool) or isinstance(found, bool):
        return wanted is found
    if isinstance(wanted, float) and isinstance(found, int | float):
        return abs(wanted - found) <= 0.05 * abs(wanted)  # memory sizes are written rounded
    return wanted == found
