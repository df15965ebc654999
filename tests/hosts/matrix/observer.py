"""``observer.py PORT UNIT [OFFSET PACE]``: what runs and what answers on a host, as lines of JSON on standard output.

Ten times a second, and ``PACE`` times less often on a host that is as many times slower.

It shares nothing with what it watches: no code, no connection, no service manager's word. What a unit holds is read from its cgroup, who
started it from the link that PID 1 keeps, what it serves over HTTP. Standard library only; it runs on the host with the host's Python.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import sys
import threading
import time
from pathlib import Path

SLICES = ("/sys/fs/cgroup/systemd/system.slice", "/sys/fs/cgroup/unified/system.slice", "/sys/fs/cgroup/system.slice")
PERIOD_S = 0.1
ASK_S = 0.25


OFFSET_S = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
PACE = float(sys.argv[4]) if len(sys.argv) > 4 else 1.0


def now() -> float:
    """Seconds since the controller's machine started. A test host shares that clock, or is told what to add to its own."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) + OFFSET_S


def text(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace")
    return ""


def living(folder: str) -> list[int]:
    """Processes of a cgroup that are not zombies."""
    pids = []
    for word in text(folder + "/cgroup.procs").split():
        stat = text("/proc/" + word + "/stat")
        if stat and stat.rpartition(")")[2].split()[0] not in "ZX":
            pids.append(int(word))
    return pids


def holders(top: str, port: str, unit: str) -> dict[str, list[int]]:
    """Units that hold processes of an engine. Candidates are looked at first: one that hands over is not counted with its successor."""
    with contextlib.suppress(OSError):
        names = sorted(entry.name for entry in Path(top).glob("autotuner-" + port + "-*.service"))
        found = {name: living(top + "/" + name) for name in [*names, unit]}
        return {name: pids for name, pids in found.items() if pids}
    return {}


class Answers(threading.Thread):
    """Asks the port for its health and its models again and again."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.latest: dict[str, object] = {"t": now(), "status": None, "models": None}

    def run(self) -> None:
        while True:
            begin = now()
            status, models = self.ask("/health_generate")[0], None
            if status == 200:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    models = sorted(item["id"] for item in json.loads(self.ask("/v1/models")[1])["data"])
            self.latest = {"t": begin, "status": status, "models": models}
            time.sleep(ASK_S * PACE)

    def ask(self, path: str) -> tuple[int | None, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PACE)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read(1 << 20)
        except (OSError, http.client.HTTPException):
            return None, b""
        finally:
            connection.close()


def main() -> None:
    """Watch until it is ended."""
    port, unit = sys.argv[1], sys.argv[2]
    top = next((folder for folder in SLICES if Path(folder).is_dir()), SLICES[-1])
    answers = Answers(int(port))
    answers.start()
    while True:
        held = holders(top, port, unit)
        if len(held) > 1:  # two looks, or a handing over between two files would count
            again = holders(top, port, unit)
            held = {name: pids for name, pids in held.items() if name in again}
        production = held.get(unit, [])
        argv = text("/proc/" + str(min(production)) + "/cmdline") if production else ""
        invocation = ""
        with contextlib.suppress(OSError):
            invocation = str(Path("/run/systemd/units/invocation:" + unit).readlink())
        sample = {
            "t": now(),
            "held": sorted(held),
            "invocation": invocation,
            "argv": hashlib.sha256(argv.encode()).hexdigest()[:12] if argv else "",
            "answer": answers.latest,
        }
        sys.stdout.write(json.dumps(sample) + "\n")
        sys.stdout.flush()
        time.sleep(PERIOD_S * PACE)


main()
