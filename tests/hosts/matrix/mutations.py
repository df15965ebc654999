"""Changes of the programs for the host that take out one safety each: ``(file, old, new)``, every ``old`` there exactly once."""

from __future__ import annotations

MUTATIONS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "no-timer": (("onhost/deadman.py", "OnActiveSec={ttl:.3f}", "OnActiveSec=1d"),),
    "no-reset-failed": (("onhost/unit_production.py", 'systemctl.systemctl("reset-failed", "--", name)', "pass"),),
    "default-accuracy": (("onhost/deadman.py", "AccuracySec=100ms\n", ""),),
    "no-fsync": (
        ("onhost/files.py", "        os.fsync(descriptor)", "        pass"),
        ("onhost/files.py", "        os.fsync(file.fileno())", "        pass"),
    ),
}
"""``no-fsync`` is for virtual hosts: one that shares this machine's page cache loses nothing without it."""
