"""Times: durations and clock times as people write them, and when a run must end."""

from __future__ import annotations

import datetime as dt
import re
from zoneinfo import ZoneInfo

from autotuner.errors import Refused, UsageError
from autotuner.model.host import Host, Window

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_DAYS = 30
"""Longer than any run that a person means."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def duration_s(text: str) -> float:
    """``90s``, ``45m``, ``9h``, ``1h30m`` in seconds. Raises ``UsageError``."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise UsageError(f"`{text}` is not a duration", hint="write it like 90s, 45m, 9h or 1h30m")
    total = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if total <= 0:
        raise UsageError(f"the duration `{text}` is not above zero", hint="write it like 90s, 45m, 9h or 1h30m")
    if total > MAX_DAYS * _UNITS["d"]:
        raise UsageError(f"the duration `{text}` is longer than {MAX_DAYS} days", hint="write it like 90s, 45m, 9h or 1h30m")
    return total


def seconds_until(text: str, now: dt.datetime) -> float:
    """Seconds from ``now`` to the next time that the clock shows ``HH:MM``. Raises ``UsageError``."""
    try:
        at = dt.time.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or not re.fullmatch(r"\d\d:\d\d", text):
        raise UsageError(f"`{text}` is not a time of day", hint="write it like 07:00")
    then = now.replace(hour=at.hour, minute=at.minute, second=0, microsecond=0)
    return ((then if then > now else then + dt.timedelta(days=1)) - now).total_seconds()


def run_seconds(host: Host, *, until: str | None, budget: str | None, now_utc: dt.datetime) -> float | None:
    """How long a run may take, the tightest of ``--until``, ``--budget`` and the host's window; ``None`` for no limit.

    Raises ``Refused`` outside of the host's tuning window.
    """
    zone = ZoneInfo(host.window.timezone) if host.window else None
    limits = [duration_s(budget)] if budget else []
    if until:
        limits.append(seconds_until(until, now_utc.astimezone(zone)))
    if host.window:
        limits.append(_left_in(host.window, now_utc.astimezone(zone), host.name))
    return min(limits, default=None)


def _left_in(window: Window, now: dt.datetime, name: str) -> float:
    to_start, to_end = seconds_until(window.start, now), seconds_until(window.end, now)
    if to_start < to_end:
        raise Refused(
            f"{name} may be tuned from {window.start} to {window.end} ({window.timezone}) only; it is {now:%H:%M} there",
            hint="start again within the window, or change `window:` in the host file",
        )
    return to_end
