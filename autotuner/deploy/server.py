"""Server: a candidate that serves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

from autotuner.deploy.failures import raise_failure
from autotuner.deploy.logs import LogFollower
from autotuner.engines.base import Engine
from autotuner.errors import AutotunerError
from autotuner.model.outcome import LaunchFacts, Stage
from autotuner.services.base import Handle, ServiceManager


class Server:
    """A started server, from the moment it generated a token."""

    def __init__(
        self,
        *,
        services: ServiceManager,
        handle: Handle,
        engine: Engine,
        follower: LogFollower,
        facts: LaunchFacts,
        info: Mapping[str, object],
        alive: Callable[[], None],
        fence: Callable[[], None],
    ) -> None:
        """``alive`` is called whenever the server is looked after; ``fence`` raises when the session has lost the host."""
        self.facts = facts
        self.info = info
        self.handle = handle
        self._services = services
        self._engine = engine
        self._follower = follower
        self._alive = alive
        self._fence = fence

    def log(self) -> str:
        """Its log so far; also after it was stopped. Of a very long one the middle is left out."""
        with contextlib.suppress(AutotunerError):  # what was read before is better than nothing
            self._follower.lines()
        return self._follower.text

    def check(self) -> None:
        """Raise the classified failure when its process has died: ``InfeasibleConfig``, ``RetryTrial`` or ``StopStudy``."""
        self._alive()
        status = self._services.status(self.handle)
        if not status.running:
            self._fence()  # the host's own watchdog may have ended it
            raise_failure(self._engine.classify(self.log(), exit_code=status.exit_code, stage=Stage.SERVE))
