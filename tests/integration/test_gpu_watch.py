"""The way of GPU samples through a transport, with a program of nvidia-smi's name as a real process: there is no GPU here."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotuner.discover.gpu_watch import GpuWatch, server_processes
from autotuner.services.hostside import HostSide
from autotuner.transports.local import LocalTransport

SMI = """#!/bin/sh
cd "$(dirname "$0")" || exit 1
what=gpus
case "$*" in *query-compute-apps*) what=apps ;; esac
case "$*" in *clocks_event_reasons*) [ -e old-driver ] && { echo 'Field "clocks_event_reasons.active" is not valid'; exit 2; } ;; esac
case "$*" in *-lms*) ;; *) cat "$what"; exit ;; esac
echo "$$" >>pids
echo "$*" >>asked
while cat "$what"; do sleep 0.05; done
"""
FIRST, SECOND = "GPU-00000000-0000", "GPU-11111111-1111"
CALM = "0x0000000000000000"
PATIENCE_S = 60


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@dataclass
class Smi:
    """The folder of the program: what it says, and who it is."""

    folder: Path

    def says(self, *gpus: str, apps: tuple[str, ...] = ()) -> None:
        for name, lines in (("gpus", gpus), ("apps", apps)):
            new = self.folder / f"{name}.new"
            new.write_text("".join(f"{line}\n" for line in lines))
            new.rename(self.folder / name)

    @property
    def pids(self) -> list[int]:
        path = self.folder / "pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Smi]:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text(SMI)
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    found = Smi(folder)
    found.says(f"0, {FIRST}, 350.00, 1980, 60, 95, 8000, {CALM}", f"1, {SECOND}, 70.00, 345, 35, 0, 3, 0x0000000000000001")
    yield found
    for pid in found.pids:
        if runs(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def host_side(tmp_path: Path) -> HostSide:
    return HostSide(LocalTransport(), pythons=(sys.executable,), state=str(tmp_path / "state"), leases=str(tmp_path / "leases"))


def sampled(watch: GpuWatch, *, more: int = 3) -> None:
    before = len(watch._samples)
    until(lambda: len(watch._samples) >= before + more)


def test_samples_of_the_engines_gpus_come_while_it_is_entered_and_nothing_is_left(smi: Smi, host_side: HostSide) -> None:
    with GpuWatch(host_side, [0], ours=tuple) as watch:
        begin = time.monotonic_ns()
        sampled(watch)
        reports, spoilt = watch.report(begin, time.monotonic_ns())
        assert [(each.index, each.power_w, each.sm_clock_mhz) for each in reports] == [(0, 350.0, 1980.0)]
        assert reports[0].utilization == pytest.approx(0.95)
        assert spoilt == ()
        until(lambda: len(smi.pids) == 2)
        assert all(map(runs, smi.pids))
    until(lambda: not any(map(runs, smi.pids)))


def test_only_the_window_counts(smi: Smi, host_side: HostSide) -> None:
    with GpuWatch(host_side, [0, 1], ours=tuple) as watch:
        sampled(watch)
        smi.says(f"0, {FIRST}, 690.00, 1400, 88, 99, 8000, 0x0000000000000040")
        until(lambda: watch._samples[-1].power_w == 690)
        begin = time.monotonic_ns()
        sampled(watch, more=2)
        end = time.monotonic_ns()
        smi.says(f"0, {FIRST}, 100.00, 1980, 50, 1, 8000, {CALM}")
        until(lambda: watch._samples[-1].power_w == 100)
        reports, spoilt = watch.report(begin, end)
    assert [(each.index, each.power_w, each.throttled) for each in reports] == [(0, 690.0, ("hardware-thermal",))]
    assert len(spoilt) == 1
    assert "it was too hot (88 °C)" in spoilt[0]


def test_an_older_driver_is_asked_by_its_own_name_for_the_reasons(smi: Smi, host_side: HostSide) -> None:
    (smi.folder / "old-driver").touch()
    with GpuWatch(host_side, [0], ours=tuple) as watch:
        sampled(watch)
    assert "clocks_throttle_reasons.active" in (smi.folder / "asked").read_text()


def test_processes_that_are_not_the_servers_are_other_tenants(smi: Smi, host_side: HostSide) -> None:
    smi.says(f"0, {FIRST}, 350.00, 1980, 60, 95, 8000, {CALM}", apps=(f"4242, {FIRST}", f"777, {FIRST}", f"778, {SECOND}"))
    with GpuWatch(host_side, [0], ours=lambda: (4241, 4242)) as watch:
        begin = time.monotonic_ns()
        sampled(watch)
        until(lambda: len(watch._apps) >= 3)
        reports, spoilt = watch.report(begin, time.monotonic_ns())
    assert reports[0].foreign_pids == (777,)
    assert spoilt == ("GPU 0 had another tenant: process 777, not of this server",)


def test_a_driver_that_knows_the_server_by_other_numbers_accuses_nobody(smi: Smi, host_side: HostSide) -> None:
    smi.says(f"0, {FIRST}, 350.00, 1980, 60, 95, 8000, {CALM}", apps=(f"4242, {FIRST}",))
    with GpuWatch(host_side, [0], ours=lambda: (17, 18)) as watch:
        begin = time.monotonic_ns()
        sampled(watch)
        until(lambda: bool(watch._apps))
        assert watch.report(begin, time.monotonic_ns())[1] == ()


def test_a_program_that_is_not_there_costs_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host_side: HostSide) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "sleep", "cat"):
        (tools / name).symlink_to(Path("/bin") / name)
    monkeypatch.setenv("PATH", str(tools))
    with GpuWatch(host_side, [0], ours=tuple) as watch:
        begin = time.monotonic_ns()
        assert watch.report(begin, time.monotonic_ns()) == ((), ("the GPUs were not watched: nvidia-smi said nothing",))


def test_its_input_is_its_life_as_when_the_connection_is_lost(smi: Smi) -> None:
    from autotuner.discover import gpu_watch

    argv = ["sh", "-c", gpu_watch._WATCH, "gpu-watch", "index", "index", "500", "500", "pid"]
    shell = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    until(lambda: len(smi.pids) == 2)
    assert shell.stdin is not None
    shell.stdin.close()
    shell.wait(PATIENCE_S)
    until(lambda: not any(map(runs, smi.pids)))


def test_output_that_nobody_reads_any_more_ends_it_even_when_its_shell_was_killed(smi: Smi) -> None:
    from autotuner.discover import gpu_watch

    argv = ["sh", "-c", gpu_watch._WATCH, "gpu-watch", "index", "index", "500", "500", "pid"]
    shell = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    smi.says("x", apps=("y",))
    until(lambda: len(smi.pids) == 2)
    shell.kill()
    assert shell.stdin is not None
    assert shell.stdout is not None
    shell.stdin.close()
    shell.stdout.close()
    shell.wait(PATIENCE_S)
    until(lambda: not any(map(runs, smi.pids)))


def test_the_servers_processes_are_those_below_its_launch(host_side: HostSide) -> None:
    program = (
        "import http.server, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'], stdin=subprocess.PIPE)\n"
        "server = http.server.HTTPServer(('127.0.0.1', 0), http.server.BaseHTTPRequestHandler)\n"
        "print(server.server_port, child.pid, flush=True)\n"
        "server.serve_forever()\n"
    )
    server = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert server.stdout is not None
        port, child = map(int, server.stdout.readline().split())
        assert set(server_processes(port, host_side)) == {server.pid, child}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            assert server_processes(probe.getsockname()[1], host_side) == ()
    finally:
        server.kill()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()
