"""Runs on a test host: writes units, starts them all, and says what each program was really given. JSON in, JSON out.

Bytes are base64 in the reply: what a program is given need not be text.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from pathlib import Path

UNITS = Path("/etc/systemd/system")
PATIENCE_S = 30.0


def main() -> None:
    asked = json.load(sys.stdin)
    for folder in asked["folders"]:
        os.makedirs(os.fsencode(folder), exist_ok=True)  # noqa: PTH103 - any bytes
    for program in asked["programs"]:
        Path(program).parent.mkdir(parents=True, exist_ok=True)
        if not Path(program).exists():
            Path(program).hardlink_to(Path("/usr/bin/python3").resolve())
    for name, text in asked["units"].items():
        (UNITS / name).write_text(text, encoding="utf-8")
    names = sorted(asked["units"])
    verified = run("systemd-analyze", "verify", *[str(UNITS / name) for name in names])
    run("systemctl", "daemon-reload")
    run("systemctl", "start", *names)
    given = {name: read(name) for name in names}
    run("systemctl", "kill", "-s", "KILL", *names)
    run("systemctl", "stop", *names)
    for name in names:
        (UNITS / name).unlink()
    run("systemctl", "daemon-reload")
    run("systemctl", "reset-failed")
    json.dump({"verify": {"code": verified.returncode, "said": verified.stdout}, "given": given}, sys.stdout)


def read(unit: str) -> dict[str, object]:
    """What the main process of a started unit has as its arguments, environment and working directory."""
    pid = int(run("systemctl", "show", "-P", "MainPID", unit).stdout or 0)
    if not pid:
        return {"error": run("systemctl", "status", "--no-pager", "-l", unit).stdout}
    deadline = time.monotonic() + PATIENCE_S
    while os.path.samefile(f"/proc/{pid}/exe", "/proc/1/exe") and time.monotonic() < deadline:  # noqa: PTH121 - not yet executed
        time.sleep(0.01)
    files = {name: Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0")[:-1] for name in ("cmdline", "environ")}
    return {
        "argv": [encoded(word) for word in files["cmdline"]],
        "env": [encoded(item) for item in files["environ"]],
        "cwd": encoded(os.readlink(os.fsencode(f"/proc/{pid}/cwd"))),  # noqa: PTH115 - bytes
    }


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)


main()
