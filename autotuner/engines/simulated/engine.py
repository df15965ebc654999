"""SimulatedEngine: the SGLang engine, with another program behind its flags."""

from __future__ import annotations

import json
import sys
from typing import ClassVar

from autotuner.engines.sglang import SglangEngine
from autotuner.engines.sglang.help import parse_help
from autotuner.engines.simulated.facts import build_digest, checked_profile
from autotuner.engines.simulated.flags import VERSION, build_parser
from autotuner.errors import UsageError
from autotuner.model.facts import EngineBuild
from autotuner.model.host import Host
from autotuner.transports.base import Transport

MODULE = "autotuner.engines.simulated"


class SimulatedEngine(SglangEngine):
    """Serves with ``python -m autotuner.engines.simulated``: here with the tuner's own interpreter, elsewhere with ``engine.python``."""

    modules: ClassVar[tuple[str, ...]] = (MODULE,)

    def command(self, host: Host) -> tuple[str, ...]:
        """What starts the server, before SGLang's flags: the host's simulation goes along as JSON."""
        simulate = host.simulate.model_dump(mode="json") if host.simulate else {}
        python = sys.executable if host.transport.type == "local" else host.engine.python
        return (python, "-m", MODULE, "--simulate", json.dumps(simulate, sort_keys=True))

    def probe(self, transport: Transport, host: Host) -> EngineBuild:
        """The simulated build: its flags and a digest of everything that decides how it behaves. Raises ``UsageError``."""
        if host.simulate is None:
            raise UsageError(f"host {host.name} has no simulate: section", hint="add one, or use the engine that is installed there")
        checked_profile(host.name, host.simulate)
        flags = parse_help(build_parser().format_help())
        return EngineBuild(engine=self.name, version=VERSION, digest=build_digest(), flags=flags)
