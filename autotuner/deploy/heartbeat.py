"""Tells the host's watchdog that the tuner lives and makes progress."""

from __future__ import annotations

import threading
import time

from autotuner.errors import AutotunerError
from autotuner.services.hostside import HostSide

STALL_S = 120.0
"""A tuner that made no progress for so long is not vouched for any more, unless it said that one step may take longer."""

_BEATS = 9
"""Renewals within one time to live: most of them may be lost."""
_TIMEOUT_S = 20.0


class Heartbeat:
    """Renews a session from a thread of its own, as long as ``touch`` is called often enough.

    A renewal that did not depend on progress would keep a hung tuner's host down for ever.
    """

    def __init__(self, host_side: HostSide, folder: str, token: str, *, ttl_s: float, stall_s: float = STALL_S) -> None:
        self._host_side = host_side
        self._request = {"session": folder, "token": token}
        self._every_s = ttl_s / _BEATS
        self._stall_s = stall_s
        self._allowed_until = time.monotonic() + stall_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="autotuner-heartbeat", daemon=True)
        self.renewed = time.monotonic()
        """When the host was last told, on the monotonic clock."""
        self.lost = False
        """The host has said that it was given back: whatever comes now, it is not this session's any more."""

    def start(self) -> None:
        """Go on in the background from the moment at which the session was armed."""
        self.renewed = time.monotonic()
        self._thread.start()

    def touch(self, allow_s: float = 0.0) -> None:
        """The main thread made progress; its next sign may take ``allow_s`` seconds, or the usual time if that is longer."""
        self._allowed_until = time.monotonic() + max(allow_s, self._stall_s)

    def stop(self) -> None:
        """Renew no more. Does not wait for a renewal that is under way: what it says no longer counts."""
        self._ended.set()

    def _beat(self) -> None:
        while not self._ended.wait(self._every_s):
            if time.monotonic() >= self._allowed_until:
                continue
            began = time.monotonic()
            try:
                reply = self._host_side.call("renew", self._request, timeout_s=_TIMEOUT_S)
            except AutotunerError:
                continue  # a gap shorter than the time to live does no harm; a longer one is what the watchdog is for
            if reply.get("live") is False:
                self.lost = True
                return
            if "error" not in reply:
                self.renewed = began
