"""A tuner of its own process, to be killed: enters a session, says which phase it is in, launches, waits."""

from __future__ import annotations

import json
import signal
import sys
import time

from autotuner.deploy import HostSession
from autotuner.engines.sglang.engine import SglangEngine
from autotuner.errors import AutotunerError
from autotuner.model.host import Host
from autotuner.services.base import LaunchSpec
from autotuner.services.hostside import HostSide
from autotuner.services.process import ProcessManager
from autotuner.services.registry import manager_for
from autotuner.transports.registry import transport_for

task = json.load(sys.stdin)
signal.signal(signal.SIGTERM, signal.default_int_handler)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def hold(phase: str) -> None:
    say(phase)
    if task["phase"] == phase:
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            session.touch()
            time.sleep(0.1)


host = Host.model_validate_json(json.dumps(task["host"]))
transport = transport_for(host)
if "state" in task:
    services = ProcessManager(HostSide(transport, state=task["state"], leases=task["leases"]))
else:
    services = manager_for(host, transport)
session = HostSession(host, SglangEngine(), transport, services, holder="test", purpose="a test", on_notice=say, ttl_s=task["ttl_s"])
try:
    with session:
        hold("entered")
        spec = LaunchSpec(name="candidate-1", argv=tuple(task["candidate"]), cwd="/")
        session.launch(spec, on_stage=lambda stage, _: hold(f"stage-{stage}"), should_stop=lambda: False)
        hold("measuring")
        session.stop()
        hold("stopped")
except AutotunerError as error:
    say(f"{type(error).__name__}: {error.message}")
    sys.exit(error.exit_code)
finally:
    transport.close()
say("left")
