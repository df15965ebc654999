"""SglangEngine: SGLang behind the engine protocol. It keeps no state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from autotuner.engines.base import Counters, Endpoints, Engine, Gauges
from autotuner.engines.sglang import argv as command_line
from autotuner.engines.sglang import dialect as dialects
from autotuner.engines.sglang import failures, metrics, probe, readback, reading, render, reserved, stages
from autotuner.model.configuration import Configuration
from autotuner.model.document import Scalar
from autotuner.model.facts import EngineBuild, HostFacts
from autotuner.model.host import Host
from autotuner.model.outcome import Failure, LaunchFacts, Stage
from autotuner.model.space import SearchSpace
from autotuner.services.base import LaunchSpec
from autotuner.transports.base import Transport


class SglangEngine(Engine):
    """SGLang 0.5.12 and later, and builds patched with draft trees. Subclasses override ``command`` and ``probe``."""

    name = "sglang"
    endpoints = Endpoints(ready="/health_generate", info="/server_info", metrics="/metrics", flush="/flush_cache")
    measuring_flags: tuple[str, ...] = reserved.MEASURING
    modules: ClassVar[tuple[str, ...]] = ("sglang.launch_server",)
    """Modules after ``-m`` that are this engine's server, in a running command line."""

    def command(self, host: Host) -> tuple[str, ...]:
        """What starts the server, before its flags."""
        return (host.engine.python, "-m", self.modules[0])

    def probe_command(self, host: Host) -> tuple[str, ...]:
        """What prints the page of accepted flags."""
        return (*self.command(host), "--help")

    def probe(self, transport: Transport, host: Host) -> EngineBuild:
        """Version, digest of the installed files and accepted flags. Raises ``StopStudy``."""
        return probe.probe_build(transport, host, self.probe_command(host))

    def launch(self, config: Configuration, *, space: SearchSpace | None, host: Host, facts: HostFacts, name: str) -> LaunchSpec:
        """Argv and environment. Raises ``InfeasibleConfig`` (stage ``render``) for what this build cannot take.

        ``engine.args`` of the host stand before the concepts, so that what is searched wins where both name a flag (the last counts).
        """
        build = facts.build
        dialect = dialects.of(host, space, build.flags)
        parts = {
            "the tuner's own": self._address(host),
            f"engine.args of host {host.name}": host.engine.args,
            "the configuration": render.concept_args(config, dialect, build, host.model.drafter),
            f"raw of search space {space.name}" if space else "raw": render.raw_args(space.raw if space else {}, config.extra_args),
            "a flag that no concept stands for": config.extra_args,
        }
        args = [arg for part in parts.values() for arg in part]
        parts["needed for measuring"] = tuple(flag for flag in self.measuring_flags if flag not in args)
        for origin, part in parts.items():
            render.check_args(part, dialect, build, origin)
        argv = (*self.command(host), *args, *parts["needed for measuring"])
        return LaunchSpec(name=name, argv=argv, env=dict(host.engine.env), cwd=host.engine.cwd, secrets=dict(host.secrets))

    def read_argv(self, argv: Sequence[str], *, host: Host) -> Configuration:
        """Concepts that a running server's command line asks for; the rest stays verbatim in ``extra_args``."""
        prefix = {group.flag for group in command_line.split(self.command(host)[1:])}
        args = command_line.after_command(argv, self.modules)
        groups = [group for group in reading.own_groups(args, host, self.measuring_flags) if group.flag not in prefix]
        return reading.read(groups, dialects.of(host, None, [group.flag for group in groups]))

    def stage_of(self, line: str) -> Stage | None:
        """The stage that a log line marks the arrival at, if any."""
        return stages.stage_of(line)

    def classify(self, log: str, *, exit_code: int | None, stage: Stage) -> Failure:
        """Why a launch or a server failed; ``exit_code`` is ``None`` while it still runs."""
        return failures.classify(log, exit_code=exit_code, stage=stage)

    def launch_facts(self, log: str, info: Mapping[str, object]) -> LaunchFacts:
        """What a successful launch said about itself."""
        return readback.launch_facts(log, info)

    def effective(self, info: Mapping[str, object]) -> Mapping[str, Scalar]:
        """The configuration that really runs, from ``/server_info``."""
        return readback.effective(info)

    def rewrites(self, requested: Configuration, effective: Mapping[str, Scalar]) -> tuple[str, ...]:
        """One sentence for every concept that runs otherwise than requested."""
        return readback.rewrites(requested, effective)

    def counters(self, metrics_text: str) -> Counters:
        """Counters from ``/metrics``."""
        return metrics.counters(metrics_text)

    def gauges(self, metrics_text: str) -> Gauges:
        """Gauges from ``/metrics``."""
        return metrics.gauges(metrics_text)

    def _address(self, host: Host) -> tuple[str, ...]:
        args = ["--model-path", host.model.path, "--host", host.endpoint.address, "--port", str(host.endpoint.port)]
        args += ["--served-model-name", host.model.served_name] if host.model.served_name else []
        args += ["--context-length", str(host.model.context_length)] if host.model.context_length else []
        return tuple(args)
