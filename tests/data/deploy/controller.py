"""A tuner of its own process, to be killed: enters a session, says which phase it is in, launches, waits."""

from __future__ import annotations

import json
import signal
import sys
import time

from autotuner.deploy import HostSession
from autotuner.engines.sglang.engine import SglangEngine
from autotuner.model.host import Host
from autotuner.services.base import LaunchSpec
from autotuner.services.hostside import HostSide
from autotuner.services.process import ProcessManager
from autotuner.transports.local import LocalTransport

task = json.load(sys.stdin)
signal.signal(signal.SIGTERM, signal.default_int_handler)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def hold(phase: str) -> None:
    say(phase)
    if task["phase"] == phase:
        time.sleep(600)


host = Host.model_validate_json(json.dumps(task["host"]))
transport = LocalTransport()
side = HostSide(transport, state=task["state"], leases=task["leases"])
session = HostSession(
    host, SglangEngine(), transport, ProcessManager(side), holder="test", purpose="a test", on_notice=say, ttl_s=task["ttl_s"]
)
with session:
    hold("entered")
    spec = LaunchSpec(name="candidate-1", argv=tuple(task["candidate"]), cwd=task["state"])
    session.launch(spec, on_stage=lambda stage, _: hold(f"stage-{stage}"), should_stop=lambda: False)
    hold("measuring")
    session.stop()
    hold("stopped")
say("left")
