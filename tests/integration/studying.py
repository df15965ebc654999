"""A process that adds launches to a study as fast as it can, and one that kills it again and again.

    studying.py add FOLDER ACKNOWLEDGED COUNT     COUNT launches, each noted in ACKNOWLEDGED (fsynced) once the study was told
    studying.py kill FOLDER ACKNOWLEDGED KILLS SEED

Says one JSON object per launch or kill.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import optuna
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.pool import NullPool

from autotuner.errors import AutotunerError
from autotuner.model.configuration import Configuration
from autotuner.model.events import Phase
from autotuner.model.space import Int, SearchSpace
from autotuner.records import RecordStore
from autotuner.study.launches import key_of
from autotuner.study.study import Study
from tests import builders as b

WORKLOADS = (b.LATENCY,)


def space() -> SearchSpace:
    parameters = {"size": Int(type="int", low=0, high=10**6)}
    return b.space(parameters=parameters, constraints=(), baseline={}, seeds=(), fixed={})


def config(number: int) -> Configuration:
    return Configuration.of({"size": number})


def say(said: object) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def opened(store: RecordStore) -> Study:
    return Study(store, space=space(), facts=b.facts().names(), workloads=WORKLOADS, busy_s=0.2)


def in_database(store: RecordStore) -> list[FrozenTrial]:
    """Every trial, as Optuna reads the file."""
    storage = RDBStorage(f"sqlite:///{store.database}", engine_kwargs={"poolclass": NullPool})
    names = optuna.get_all_study_names(storage)
    return optuna.load_study(study_name=names[0], storage=storage).get_trials(deepcopy=False) if names else []


def add(folder: Path, acknowledged: Path, count: float, tick: Callable[[], object] = bool) -> None:
    """Launch after launch: what was lost first, else the next one. ``tick`` is called when the study is open and after each."""
    store = RecordStore(folder)
    with store.lock(f"bob@box (pid {os.getpid()})"):
        study = opened(store)
        tick()
        again = [item.config for item in study.requeued]
        done = 0
        while done < count:
            number = study.next_number
            what = again.pop() if again else config(number)
            study.start(number, what, Phase.SEARCH)
            study.tell(b.measured(number, what, (100.0 + number, 50.0, 3000.0)))
            with acknowledged.open("ab", buffering=0) as file:
                file.write(f"{number}\n".encode())
                os.fsync(file.fileno())
            say({"told": number, "notices": study.take_notices()})
            done += 1
            tick()


def kill(folder: Path, acknowledged: Path, kills: int, seed: int) -> None:
    """Fork a process that adds, kill it after a random time, and look at what is there before the next one mends it."""
    source = random.Random(seed)
    store = RecordStore(folder)
    paces = {False: 0.1, True: 0.1}
    """Seconds that opening, and one launch, took at last."""
    for _ in range(kills):
        ready, done = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            try:
                add(folder, acknowledged, float("inf"), functools.partial(os.write, done, b"."))
            finally:
                os._exit(1)
        os.close(done)
        steps = source.randrange(4)  # 0: while it opens the study; else within one of the launches that follow
        for step in range(steps):
            began = time.monotonic()
            os.read(ready, 1)
            paces[step > 0] = time.monotonic() - began
        time.sleep(source.uniform(0, paces[steps > 0]))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.close(ready)
        kept = {record.number for record in store.trials()}
        trials = in_database(store) if store.database.exists() and store.database.stat().st_size else []
        told = {key_of(trial)[0] for trial in trials if trial.state is TrialState.COMPLETE}  # type: ignore[index]
        running = sum(trial.state is TrialState.RUNNING for trial in trials)
        say({"signal": os.WTERMSIG(status), "kept": len(kept), "untold": len(kept - told), "running": running})


def main(command: str, folder: str, acknowledged: str, *numbers: str) -> int:
    try:
        with contextlib.suppress(BrokenPipeError):
            {"add": add, "kill": kill}[command](Path(folder), Path(acknowledged), *map(int, numbers))
    except AutotunerError as error:
        say({"error": error.message, "hint": error.hint, "exit": error.exit_code})
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
