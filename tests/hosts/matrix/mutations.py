"""Changes of the programs for the host that take out one safety each: ``(file, old, new)``, every ``old`` there exactly once."""

from __future__ import annotations

MUTATIONS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "no-timer": (("onhost/deadman.py", "OnActiveSec={ttl:.3f}", "OnActiveSec=1d"),),
    "no-reset-failed": (("onhost/unit_production.py", 'systemctl.systemctl("reset-failed", "--", name)', "pass"),),
    "default-accuracy": (("onhost/deadman.py", "AccuracySec=100ms\n", ""),),
}
"""A run on a virtual machine whose power is cut adds one without ``os.fsync`` in ``onhost/files.py``: a host that shares this machine's
page cache loses nothing without it."""
