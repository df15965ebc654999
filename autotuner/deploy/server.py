"""Server: a candidate that serves."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from autotuner.deploy.failures import raise_failure
from autotuner.deploy.logs import LogFollower
from autotuner.deploy.patience import patiently
from autotuner.deploy.watch import Watch
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
        follower: LogFollower,
        facts: LaunchFacts,
        info: Mapping[str, object],
        watch: Watch,
        gap_s: float,
    ) -> None:
        """``gap_s`` is how long the host may be out of reach when the server is looked after."""
        self.facts = facts
        self.info = info
        self.handle = handle
        self._services = services
        self._follower = follower
        self._watch = watch
        self._gap_s = gap_s

    def log(self) -> str:
        """Its log so far; also after it was stopped. Of a very long one the middle is left out."""
        with contextlib.suppress(AutotunerError):  # what was read before is better than nothing
            self._follower.lines()
        return self._follower.text

    def check(self) -> None:
        """Raise the classified failure when it has died: ``InfeasibleConfig``, ``RetryTrial`` or ``StopStudy``.

        A host that cannot be reached is waited for.
        """
        patiently(self._check, within_s=self._gap_s, meanwhile=self._watch.alive)

    def _check(self) -> None:
        self._watch.alive()
        status = self._services.status(self.handle)
        if not status.running:
            self._watch.ended_by_others(status)
            raise_failure(self._watch.failure(self.log(), status, Stage.SERVE))
