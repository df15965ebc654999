"""Production units on a test host: the simulated server, or a small web server that starts in a moment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

GPU = {"name": "NVIDIA B300 SXM6 AC", "count": 8, "memory_gib": 275, "sm": 103, "link": "nvlink"}
SIMULATE: dict[str, object] = {"profile": "b300", "gpu": GPU, "launch_seconds": 0.2, "noise": 0.01}
MODEL = "simulated:kimi-k2.6"
LIGHT_SERVER = Path(__file__).with_name("light_server.py")


_OBEY = "/usr/local/lib/before-production"
_OBEYING = """#!/bin/sh
left=$(cat "/var/lib/$1.failures" 2>/dev/null || echo 0)
if [ "$left" -gt 0 ]; then echo $((left - 1)) >"/var/lib/$1.failures"; exit 1; fi
sleep "$(cat "/var/lib/$1.slow" 2>/dev/null || echo 0)"
"""


class Production:
    """What ``Machine`` can do about production. Its units obey ``fail_starts`` and ``slow_starts``."""

    engine_python: str

    def run(self, argv: Sequence[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
        raise NotImplementedError

    def write(self, path: str, text: str, *, mode: int = 0o644) -> None:
        raise NotImplementedError

    def production(
        self,
        unit: str = "prod.service",
        *,
        port: int = 30000,
        label: str = "production",
        address: str = "127.0.0.1",
        simulate: Mapping[str, object] | None = None,
        flags: Sequence[str] = (),
        directives: Mapping[str, str] | None = None,
        enabled: bool = True,
        start: bool = True,
        wait: bool = True,
    ) -> list[str]:
        """Install and start a unit that serves with the simulated engine under the name ``label``; its argv."""
        argv = [self.engine_python, "-m", "autotuner.engines.simulated", "--simulate", json.dumps({**SIMULATE, **(simulate or {})})]
        argv += ["--model-path", MODEL, "--served-model-name", label, "--context-length", "16384", "--tp-size", "8"]
        argv += ["--host", address, "--port", str(port), "--random-seed", "77", *flags]
        self._install(unit, argv, port=port, directives=directives, enabled=enabled, start=start, wait=wait)
        return argv

    def light_production(
        self,
        unit: str = "prod.service",
        *,
        port: int = 30000,
        label: str = "production",
        address: str = "127.0.0.1",
        flags: Sequence[str] = (),
        directives: Mapping[str, str] | None = None,
        enabled: bool = True,
        start: bool = True,
        wait: bool = True,
    ) -> list[str]:
        """Install and start a unit that answers the ready path and the model list and nothing else; its argv."""
        argv = ["/usr/bin/python3", "-S", "-E", str(LIGHT_SERVER), "--host", address, "--port", str(port)]
        argv += ["--served-model-name", label, *flags]
        self._install(unit, argv, port=port, directives=directives, enabled=enabled, start=start, wait=wait)
        return argv

    def fail_starts(self, count: int, unit: str = "prod.service") -> None:
        """Let the next starts of the unit fail."""
        self.write(f"/var/lib/{unit}.failures", str(count))

    def slow_starts(self, seconds: float, unit: str = "prod.service") -> None:
        """Let every start of the unit take longer."""
        self.write(f"/var/lib/{unit}.slow", str(seconds))

    def healthy(self, port: int = 30000) -> bool:
        """Whether what listens on the port says that it can serve."""
        return (
            self.run(["curl", "-sf", "-m", "5", "-o", "/dev/null", f"http://127.0.0.1:{port}/health_generate"], check=False).returncode == 0
        )

    def _install(
        self,
        unit: str,
        argv: Sequence[str],
        *,
        port: int,
        directives: Mapping[str, str] | None,
        enabled: bool,
        start: bool,
        wait: bool,
    ) -> None:
        self.write(_OBEY, _OBEYING, mode=0o755)
        service = {
            "Environment": '"MARK_OF_PRODUCTION=as before"',
            "ExecStartPre": f"/bin/sh {_OBEY} {unit}",
            "ExecStart": " ".join(map(unit_word, argv)),
            "TimeoutStopSec": "5",
            **(directives or {}),
        }
        lines = ["[Unit]", f"Description={unit}", "[Service]", *(f"{key}={value}" for key, value in service.items())]
        self.write(f"/etc/systemd/system/{unit}", "\n".join([*lines, "[Install]", "WantedBy=multi-user.target", ""]))
        self.run(["systemctl", "daemon-reload"])
        if enabled:
            self.run(["systemctl", "enable", "-q", unit])
        if start:
            self.run(["systemctl", "start", unit])
        if start and wait:
            from tests.hosts.machine import until

            until(lambda: self.healthy(port), f"{unit} answering")


def unit_word(word: str) -> str:
    """One word of ``ExecStart=``, as systemd reads it back."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'
