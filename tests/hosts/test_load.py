"""Load that is driven on a booted host, over real SSH, against the simulated server there."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest
from pydantic import TypeAdapter

from autotuner.errors import RetryTrial
from autotuner.loadgen.cells import CellMeasurement
from autotuner.loadgen.fleet import Fleet, fleet
from autotuner.loadgen.remote import TITLE, RemoteWorker, host_fleet
from autotuner.model.host import SshTransport as SshDocument
from autotuner.transports.base import Stream
from autotuner.transports.ssh.transport import SshTransport
from tests.hosts.machine import Machine, until
from tests.small_cells import ENDLESS, measure

pytestmark = pytest.mark.host

THERE = "http://127.0.0.1:30000"
"""The server as its own machine reaches it."""
OTHER_TIME_S = 5_000_000


class InAnotherTime(SshTransport):
    """The host was booted long before this machine: the kernel gives its streams a monotonic clock of their own."""

    def stream(self, argv: Sequence[str]) -> Stream:
        # Only who is root of a user namespace may give a clock to one of time.
        unshare = ["unshare", "--user", "--map-root-user", "--time", "--monotonic", str(OTHER_TIME_S), "--fork", "--kill-child"]
        return super().stream([*unshare, *argv])


def document(machine: Machine) -> SshDocument:
    return TypeAdapter(SshDocument).validate_python(machine.ssh_document())


@pytest.fixture(scope="module")
def serving(pool: Sequence[Machine]) -> Machine:
    """A host that serves on every address, so that the same server can be measured from both sides."""
    machine = pool[0].fresh()
    machine.production(label="kimi", address="0.0.0.0", simulate={"noise": 0.0})  # noqa: S104 - a network of its own
    return machine


@pytest.fixture
def host(serving: Machine) -> Iterator[tuple[SshTransport, Fleet]]:
    with closing(SshTransport(document(serving))) as transport, closing(host_fleet(transport)) as workers:
        yield transport, workers


@pytest.fixture(autouse=True, scope="module")
def _rested_fleet() -> Iterator[None]:
    yield
    fleet().close()


def load_processes(machine: Machine) -> list[str]:
    return machine.out("pgrep", "-f", f"{TITLE}$").split()


def said_about_the_way(found: CellMeasurement) -> list[str]:
    return [warning for warning in found.result.warnings if "waited" in warning or "clock" in warning or "kernel" in warning]


@pytest.mark.alone
@pytest.mark.parametrize("concurrency", [1, 16])
def test_a_server_is_measured_alike_from_the_controller_and_on_its_host(
    serving: Machine, host: tuple[SshTransport, Fleet], concurrency: int
) -> None:
    here = measure(f"http://{serving.address}:30000", None, concurrency=concurrency)
    there = measure(THERE, host[1], concurrency=concurrency)
    assert there.result.failed == here.result.failed == 0
    for metric in ("output_tok_s", "user_tok_s", "tpot_p50_ms"):
        assert there.result.metrics[metric] == pytest.approx(here.result.metrics[metric], rel=0.25), metric
    assert said_about_the_way(there) == []


def test_stamps_of_another_clock_are_put_on_the_cells_own(serving: Machine) -> None:
    with closing(InAnotherTime(document(serving))) as transport, closing(host_fleet(transport)) as workers:
        found = measure(THERE, workers, concurrency=1)
        [worker] = workers._idle
        assert isinstance(worker, RemoteWorker)
        assert worker._begun is not None
        assert worker._begun.offset_ns / 1e9 == pytest.approx(OTHER_TIME_S, abs=1)
    assert said_about_the_way(found) == []
    assert found.result.failed == 0
    whole = found.result.metrics["output_tok_s"] * found.result.window_s / 64
    assert whole == pytest.approx(round(whole), abs=0.02)
    assert all(0 <= record.start_s < 60 for record in found.records)


def files(machine: Machine) -> set[str]:
    """Every file on the host's disk that is newer than the host itself, but for the system's own notes."""
    found = machine.out("find", "/", "-xdev", "-type", "f", "-newer", "/proc/1")
    return {path for path in found.splitlines() if not path.startswith(("/var/log/", "/proc/", "/var/lib/systemd/"))}


def test_nothing_is_left_on_the_host(serving: Machine) -> None:
    before = files(serving)
    with closing(SshTransport(document(serving))) as transport, closing(host_fleet(transport)) as workers:
        measure(THERE, workers)
        assert load_processes(serving)
    until(lambda: not load_processes(serving), "the end of the load workers")
    assert files(serving) == before


def test_a_killed_ssh_session_is_a_reason_to_try_again(serving: Machine, host: tuple[SshTransport, Fleet]) -> None:
    transport, workers = host
    before = transport.interruptions
    killer = threading.Timer(2.0, serving.run, (["pkill", "-KILL", "-f", "^sshd: root"],))
    killer.start()
    with pytest.raises(RetryTrial, match=r"load worker \d+ on root@.* was lost"):
        measure(THERE, workers, plan=ENDLESS)
    killer.join()
    assert transport.interruptions > before
    until(lambda: not load_processes(serving), "the end of the load workers")
    assert measure(THERE, workers).result.requests > 0


def test_a_silent_network_is_a_reason_to_try_again_and_ends_the_load(
    serving: Machine, host: tuple[SshTransport, Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotuner.loadgen.remote.SILENCE_S", 5.0)
    _, workers = host
    dropper = threading.Timer(2.0, serving.drop)
    dropper.start()
    try:
        with pytest.raises(RetryTrial, match=r"load worker \d+ on root@.* was lost"):
            measure(THERE, workers, plan=ENDLESS)
        dropper.join()
        until(lambda: not load_processes(serving), "the end of the load workers on a host that hears nothing")
    finally:
        dropper.join()
        serving.undrop()
