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
from autotuner.model.configuration import Configuration
from autotuner.model.facts import EngineBuild, HostFacts
from autotuner.model.host import Host
from autotuner.model.space import SearchSpace
from autotuner.services.base import LaunchSpec
from autotuner.transports.base import Transport

MODULE = "autotuner.engines.simulated"


class SimulatedEngine(SglangEngine):
    """Serves with ``python -m autotuner.engines.simulated`` from the tuner's own interpreter."""

    modules: ClassVar[tuple[str, ...]] = (MODULE,)

    def command(self, host: Host) -> tuple[str, ...]:
        """What starts the server, before SGLang's flags: the host's simulation and model go along as JSON."""
        return (sys.executable, "-m", MODULE, "--simulate", self._setting(host, launch=""))

    def probe(self, transport: Transport, host: Host) -> EngineBuild:
        """The simulated build: its flags and a digest of everything that decides how it behaves. Raises ``UsageError``."""
        if host.simulate is None:
            raise UsageError(f"host {host.name} has no simulate: section", hint="add one, or use the engine that is installed there")
        checked_profile(host.name, host.simulate)
        text = build_parser().format_help()
        return EngineBuild(engine=self.name, version=VERSION, digest=build_digest(), flags=parse_help(text), help_text=text)

    def launch(self, config: Configuration, *, space: SearchSpace | None, host: Host, facts: HostFacts, name: str) -> LaunchSpec:
        """As the SGLang engine; the launch's name goes along, since launches of other names have other noise."""
        spec = super().launch(config, space=space, host=host, facts=facts, name=name)
        plain, named = self._setting(host, launch=""), self._setting(host, launch=name)
        argv = tuple(named if word == plain else word for word in spec.argv)
        return LaunchSpec(name=spec.name, argv=argv, env=spec.env, cwd=spec.cwd, secrets=spec.secrets)

    def _setting(self, host: Host, *, launch: str) -> str:
        simulate = host.simulate.model_dump(mode="json") if host.simulate else {}
        return json.dumps({"simulate": simulate, "model": host.model.model_dump(mode="json"), "launch": launch}, sort_keys=True)
