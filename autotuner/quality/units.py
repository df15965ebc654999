"""The sandbox of systemd: a transient unit with a user of its own and nothing else. For root, where systemd is the first process."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from autotuner.quality.sandbox import CPU_S, MEMORY_BYTES, OPEN_FILES, OUTPUT_BYTES, PATH, PROCESSES, WALL_S, Ended

_PYTHON = "/usr/bin/python3"
_POLL_S = 0.03
_ASK_S = 20.0
_SLACK_S = 10.0
"""systemd ends what runs too long; if it does not, it is told to."""
_PROPERTIES = (
    *("DynamicUser=yes", "PrivateNetwork=yes", "RestrictAddressFamilies=AF_UNIX", "ProtectSystem=strict", "ProtectHome=yes"),
    *("PrivateTmp=yes", "PrivateDevices=yes", "PrivateUsers=yes", "PrivateIPC=yes", "ProtectProc=invisible", "ProcSubset=pid"),
    *("NoNewPrivileges=yes", "CapabilityBoundingSet=", "RestrictNamespaces=yes", "ProtectKernelTunables=yes", "ProtectKernelModules=yes"),
    *("ProtectControlGroups=yes", "LockPersonality=yes", "RestrictSUIDSGID=yes", "RestrictRealtime=yes", "KeyringMode=private"),
    *("SystemCallArchitectures=native", "SystemCallFilter=@system-service", "SystemCallFilter=~@privileged"),
    *("SystemCallErrorNumber=EPERM", "InaccessiblePaths=-/run/dbus", "UMask=0077", "KillMode=control-group", "OOMPolicy=kill"),
    *(f"MemoryMax={MEMORY_BYTES}", "MemorySwapMax=0", f"TasksMax={PROCESSES}", "CPUQuota=100%", f"LimitCPU={CPU_S}"),
    *(f"LimitFSIZE={OUTPUT_BYTES}", f"LimitNOFILE={OPEN_FILES}", "LimitCORE=0", f"RuntimeMaxSec={WALL_S:.0f}", "TimeoutStopSec=1"),
    # Memory of this machine that could be written to, and found by others.
    *("InaccessiblePaths=-/dev/shm", "InaccessiblePaths=-/dev/mqueue"),
    *("WorkingDirectory=/", "StandardInput=null", "StandardError=null"),
)


_SEEN = {"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "dev", "proc", "sys", "run"}
"""Folders of the root without which nothing runs. All others are not to be seen, readable for everybody or not; also the unit's own
temporary folders, which lie on the disk and have no limit together."""


class Units:
    """Runs code as transient units. Construction raises ``LookupError`` with why there can be none."""

    def __init__(self, hidden: Sequence[Path] = ()) -> None:
        """``hidden`` are folders that are not to be seen from there, whatever their mode."""
        if not Path("/run/systemd/system").is_dir() or shutil.which("systemd-run", path=PATH) is None:
            raise LookupError("systemd: it is not what runs this machine")
        if os.geteuid() != 0:
            raise LookupError("systemd: only root may start a unit with a user of its own")
        said = self._ask("systemctl", "--version").split()
        self.name = f"systemd {said[1]}" if len(said) > 1 else "systemd"
        others = [path for path in Path("/").iterdir() if path.name not in _SEEN and path.is_dir() and not path.is_symlink()]
        self._hidden = [f"InaccessiblePaths=-{path.absolute()}" for path in (*sorted(others), *hidden)]

    def run(self, programs: Sequence[tuple[str, bytes]], arguments: Sequence[str]) -> Ended:
        """As in ``Sandbox``."""
        unit = f"autotuner-gate-{secrets.token_hex(6)}.service"
        with tempfile.TemporaryDirectory(prefix="autotuner-gate-", dir="/run") as folder:
            Path(folder).chmod(0o755)
            for name, content in programs:
                path = Path(folder, name)
                path.write_bytes(content)
                path.chmod(0o644)
            output = Path(folder, "output")
            properties = [*_PROPERTIES, *self._hidden, f"StandardOutput=truncate:{output}"]
            command = [_PYTHON, "-I", "-S", f"{folder}/{programs[0][0]}", *(argument.format(gate=folder) for argument in arguments)]
            start = ["systemd-run", "--quiet", f"--unit={unit}", *(part for item in properties for part in ("-p", item)), "--", *command]
            try:
                done = subprocess.run(start, capture_output=True, text=True, timeout=_ASK_S, check=False, env={"PATH": PATH}, cwd="/")
                if done.returncode:
                    return Ended(how="not-started", output=b"", detail=done.stderr.strip()[:300])
                result = self._await(unit)
            except (OSError, subprocess.TimeoutExpired) as error:
                return Ended(how="not-started", output=b"", detail=str(error)[:300])
            finally:
                for verb in ("stop", "reset-failed"):
                    self._ask("systemctl", verb, unit)
            how = {"success": "finished", "timeout": "timeout"}.get(result, "killed")
            return Ended(how=how, output=_read(output), detail="" if how == "finished" else f"systemd ended it: {result}")

    def _await(self, unit: str) -> str:
        until = time.monotonic() + WALL_S + _SLACK_S
        while time.monotonic() < until:
            shown = dict(
                line.split("=", 1) for line in self._ask("systemctl", "show", "-p", "ActiveState,Result", unit).splitlines() if "=" in line
            )
            if shown.get("ActiveState") in ("inactive", "failed"):
                return shown.get("Result", "unknown")
            time.sleep(_POLL_S)
        return "timeout"

    @staticmethod
    def _ask(*argv: str) -> str:
        """What a command printed; nothing when it fails."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(argv, capture_output=True, text=True, timeout=_ASK_S, check=False, env={"PATH": PATH}, cwd="/")
            return done.stdout
        return ""


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(OUTPUT_BYTES)
    except OSError:
        return b""
