"""``python -m tests.hosts.matrix.run``: the fault matrix on three hosts side by side, then its numbers and its table.

Each host belongs to one worker of pytest-xdist, which takes the next cell when it is done with the one before.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.hosts.base import Base
from tests.hosts.matrix import results

HOSTS = 3
FOLDER = Path(__file__).parent
_DOWN_S = 60.0


def main() -> int:
    """Run it to its end; 0 when every cell, control and kill was as it must be."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--cells", choices=["representative", "whole", "none"], default="whole", help="which cells to run")
    parser.add_argument("--kills", type=int, default=30, help="how often a tuner is killed at a random instant")
    parser.add_argument("--out", type=Path, default=Path("build/matrix"), help="folder for results, table and logs")
    args = parser.parse_args()
    out = args.out.absolute()
    (out / "cells").mkdir(parents=True, exist_ok=True)
    for old in (out / "cells").glob("*.jsonl"):
        old.unlink()
    Base().ensure()
    begin = time.monotonic()
    tests = _start(args.cells, args.kills, out)
    try:
        _follow(tests, out / "cells")
    except KeyboardInterrupt:
        _say("interrupted: the hosts are brought down")
        tests.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            tests.wait(_DOWN_S)
        return 130
    finally:
        _end(tests)
    found = results.read(out / "cells")
    numbers = {**results.summary(found), "minutes": round((time.monotonic() - begin) / 60, 1)}
    (out / "results.json").write_text(json.dumps({"summary": numbers, "results": found}, indent=1) + "\n")
    (out / "table.md").write_text(results.table(found) + "\n")
    _say(json.dumps(numbers, indent=1))
    _say(f"results: {out}/results.json, table: {out}/table.md, log: {out}/tests.log")
    if tests.returncode != 0 or not found:
        _say(f"error: the tests ended with {tests.returncode}")
        return 1
    return 0


def _start(cells: str, kills: int, out: Path) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "AUTOTUNER_HOST_TESTS": "1",
        "AUTOTUNER_MATRIX": cells,
        "AUTOTUNER_MATRIX_KILLS": str(kills),
        "AUTOTUNER_MATRIX_RESULTS": str(out / "cells"),
    }
    argv = [sys.executable, "-m", "pytest", str(FOLDER), "-q", "--tb=short", "--durations=0", "-p", "no:cacheprovider"]
    argv += [f"--numprocesses={HOSTS}", "--dist=load", "--maxschedchunk=1"]
    argv += [f"--basetemp={out}/tests", "-o", "tmp_path_retention_policy=failed"]
    with (out / "tests.log").open("wb") as log:
        return subprocess.Popen(argv, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)


def _end(tests: subprocess.Popen[bytes]) -> None:
    """Interrupted: the tests power their hosts off first."""
    if tests.poll() is not None:
        return
    tests.send_signal(signal.SIGINT)
    try:
        tests.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(tests.pid, signal.SIGKILL)
        tests.wait()


def _follow(tests: subprocess.Popen[bytes], folder: Path) -> None:
    """Say what came of each cell as it ends."""
    told: set[tuple[str, str]] = set()
    while True:
        over = tests.poll() is not None
        found = results.read(folder)
        for result in found:
            if (result["kind"], result["cell"]) in told:
                continue
            told.add((result["kind"], result["cell"]))
            took = f" ({result['restored_s']:g} s)" if result["restored_s"] else ""
            _say(f"{'VIOLATED' if result['violations'] else 'ok'} {result['kind']} {result['cell']}{took}")
            for violation in result["violations"]:
                _say(f"    {violation}")
        if over:
            return
        time.sleep(1)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
