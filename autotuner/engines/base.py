"""Engine: what differs between serving engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from autotuner.model.configuration import Configuration
from autotuner.model.document import Scalar
from autotuner.model.facts import EngineBuild, HostFacts
from autotuner.model.host import Host
from autotuner.model.outcome import Failure, LaunchFacts, Stage
from autotuner.model.space import SearchSpace
from autotuner.services.base import LaunchSpec
from autotuner.transports.base import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Paths of the engine's HTTP interface; ``None`` where it has none."""

    ready: str
    """Answers 200 only when a token was generated."""
    info: str | None
    metrics: str | None
    flush: str | None
    """Empties the prefix cache (POST)."""
    chat: str = "/v1/chat/completions"
    models: str = "/v1/models"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Monotonic counters of the server; ``None`` where it does not export one."""

    generation_tokens: float | None = None
    """Tokens generated, counted together with ``verify_steps``."""
    decoded_tokens: float | None = None
    """Tokens generated, counted as they are made."""
    verify_steps: float | None = None
    """Verification steps of speculative decoding, summed over requests."""
    drafted_tokens: float | None = None
    accepted_tokens: float | None = None
    """Drafted tokens that the target accepted; its own token of each step is not among them."""
    retractions: float | None = None
    """Requests thrown out of the batch for want of KV memory."""
    cached_tokens: float | None = None
    """Prompt tokens that came from the prefix cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """How a server is at this moment; ``None`` where it does not export it."""

    running: float | None = None
    """Requests in the batch."""
    queued: float | None = None
    """Requests that wait for a place in it."""
    kv_usage: float | None = None
    """Share of KV memory in use, 0 to 1; the fullest replica's."""


class Engine(Protocol):
    """A serving engine. No method does I/O except ``probe``, through the transport that it is given."""

    name: str
    endpoints: Endpoints
    measuring_flags: tuple[str, ...]
    """Flags that every launch gets because measuring needs them."""

    def command(self, host: Host) -> tuple[str, ...]:
        """What starts the server, before its flags: a program and its first arguments."""
        ...

    def probe(self, transport: Transport, host: Host) -> EngineBuild:
        """What is installed: version, digest of its files, accepted flags. Raises ``StopStudy`` when nothing usable is installed."""
        ...

    def launch(self, config: Configuration, *, space: SearchSpace | None, host: Host, facts: HostFacts, name: str) -> LaunchSpec:
        """Argv and environment of a server with this configuration.

        Raises ``InfeasibleConfig`` (stage ``render``) when the build lacks a flag or a choice; the message names the near miss.
        """
        ...

    def read_argv(self, argv: Sequence[str], *, host: Host) -> Configuration:
        """The configuration that a running server's command line asks for: concepts, and the rest verbatim in ``extra_args``.

        Model, drafter path, address, port, the host's own ``engine.args`` and measuring flags are left out: every launch has them anyway.
        """
        ...

    def stage_of(self, line: str) -> Stage | None:
        """The stage that a log line marks the arrival at, if any."""
        ...

    def classify(self, log: str, *, exit_code: int | None, stage: Stage) -> Failure:
        """Why a launch or a server failed, from its log, how it ended and where it was."""
        ...

    def launch_facts(self, log: str, info: Mapping[str, object]) -> LaunchFacts:
        """What a successful launch said about itself (argv, env and times are filled in by the caller)."""
        ...

    def effective(self, info: Mapping[str, object]) -> Mapping[str, Scalar]:
        """The configuration that really runs, in concepts, from the engine's answer about itself."""
        ...

    def rewrites(self, requested: Configuration, effective: Mapping[str, Scalar]) -> tuple[str, ...]:
        """One sentence for every concept that runs otherwise than requested."""
        ...

    def counters(self, metrics_text: str) -> Counters:
        """Counters from a Prometheus page."""
        ...

    def gauges(self, metrics_text: str) -> Gauges:
        """Gauges from a Prometheus page."""
        ...
