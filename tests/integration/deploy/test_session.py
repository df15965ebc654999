from __future__ import annotations

import contextlib
import http.server
import json
import os
import signal
import threading
from pathlib import Path

import pytest

from autotuner.deploy import HostSession, Server
from autotuner.deploy.failures import TransientFailure
from autotuner.errors import InfeasibleConfig, Interrupted, NotRestored, Refused, StopStudy
from autotuner.model.outcome import Stage as LaunchStage
from autotuner.services.onhost import processes


def launch(session: HostSession, stage, *arguments: str, name: str = "candidate-1", stages: list | None = None) -> Server:
    heard = stages if stages is not None else []
    return session.launch(stage.spec(*arguments, name=name), on_stage=lambda *at: heard.append(at), should_stop=lambda: False)


def test_a_night_leaves_production_as_it_was(stage) -> None:
    before = stage.produce()
    environment = processes.environment(before.pid)
    stages: list[tuple[LaunchStage, float]] = []
    with stage.session() as session:
        assert session.production is not None
        assert session.production.argv == tuple(before.args)
        assert session.production.answered
        assert "s3cret" not in repr(session.production)
        assert stage.serving()["label"] == "production"
        server = launch(session, stage, stages=stages)
        assert stage.serving() == {"label": "candidate", "marker": "candidate-1"}
        assert before.wait() == -signal.SIGTERM
        assert server.info == {"label": "candidate", "marker": "candidate-1"}
        assert server.facts.argv == stage.spec().argv
        assert server.facts.env == {"MARKER": "candidate-1"}
        assert server.facts.launch_s > 0
        server.check()
        second = launch(session, stage, name="candidate-2")
        assert second.info["marker"] == "candidate-2"
        assert "ready to roll" in server.log()
    assert [at[0] for at in stages] == [LaunchStage.START, LaunchStage.RESOLVE, LaunchStage.LOAD, LaunchStage.READY]
    assert stage.serving() == {"label": "production", "marker": "as before"}
    pid = stage.listener()
    assert processes.arguments(pid) == list(before.args)
    assert processes.environment(pid) == environment
    assert Path(f"/proc/{pid}/cwd").readlink() == stage.folder
    assert Path(f"/proc/{pid}/fd/1").readlink() == stage.folder / "production.out"
    assert stage.candidates() == set()
    assert list((stage.folder / "leases").iterdir()) == []


def test_a_session_that_launches_nothing_does_not_touch_production(stage) -> None:
    before = stage.produce()
    with stage.session():
        pass
    assert before.poll() is None
    assert stage.listener() == before.pid


def test_twice_in_a_row_and_without_production(stage) -> None:
    for _ in range(2):
        with stage.session() as session:
            assert session.production is None
            launch(session, stage)
        assert stage.listener() is None
        stage.until(lambda: not stage.ours(), "the end of the watchdog")


def test_a_second_tuner_is_refused_by_name_and_disturbs_nothing(stage) -> None:
    with stage.session(holder="ann@box (pid 7)") as session:
        server = launch(session, stage)
        with pytest.raises(Refused, match=r"ann@box \(pid 7\) since 20.*a test") as refused, stage.session(holder="bob"):
            pass
        assert str(os.getpid()) in (refused.value.hint or "")
        server.check()
        assert stage.serving()["label"] == "candidate"


@pytest.mark.parametrize("production", ["auto", "none"])
def test_a_foreign_owner_of_the_port_is_named_and_lives(stage, production: str) -> None:
    stage.service["production"] = production
    foreign = stage.start_foreign()
    with pytest.raises(Refused, match=rf"port {stage.port} of here is held by .*http.server.*\(pid {foreign.pid}\)"), stage.session():
        pass
    assert foreign.poll() is None
    assert list((stage.folder / "leases").iterdir()) == []


def test_a_foreign_process_that_takes_the_port_during_the_night(stage) -> None:
    with stage.session() as session:
        launch(session, stage)
        session.stop()
        foreign = stage.start_foreign()
        with pytest.raises(Refused, match=rf"\(pid {foreign.pid}\)"):
            launch(session, stage, name="candidate-2")
    assert foreign.poll() is None


def test_an_own_web_server_in_this_very_process_is_not_stopped(stage) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", stage.port), http.server.SimpleHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with pytest.raises(Refused, match=rf"\(pid {os.getpid()}\)"), stage.session():
            pass
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_production_that_could_not_come_back_is_refused_before_it_is_stopped(stage) -> None:
    program = stage.folder / "python-of-sglang"
    program.symlink_to(os.path.realpath("/proc/self/exe"))
    before = stage.produce_with(str(program))
    program.unlink()
    with pytest.raises(Refused, match=r"could not be brought back: its program .* is no longer there"), stage.session():
        pass
    assert before.poll() is None
    assert stage.listener() == before.pid


def test_production_none_refuses_what_serves(stage) -> None:
    stage.service["production"] = "none"
    before = stage.produce()
    with pytest.raises(Refused, match=r"production is none, but .* serves"), stage.session():
        pass
    assert before.poll() is None


def test_declared_production_is_started_as_declared(stage) -> None:
    before = stage.produce()
    stage.service["production"] = {"argv": list(before.args), "env": {"MARKER": "declared"}, "cwd": "/"}
    with stage.session() as session:
        launch(session, stage)
    assert stage.serving() == {"label": "production", "marker": "declared"}
    assert Path(f"/proc/{stage.listener()}/cwd").readlink() == Path("/")


def test_declared_production_that_is_inactive_stays_inactive(stage) -> None:
    stage.service["production"] = {"argv": list(stage.command(label="production"))}
    with stage.session() as session:
        assert session.production is None
        launch(session, stage)
    assert stage.listener() is None


def test_another_server_than_the_declared_one_is_refused(stage) -> None:
    before = stage.produce()
    stage.service["production"] = {"argv": ["python3", "-m", "sglang.launch_server", "--other"]}
    with pytest.raises(Refused, match=r"but service\.production names python3 -m sglang\.launch_server --other"), stage.session():
        pass
    assert before.poll() is None


def test_death_while_starting_is_classified_with_its_log(stage) -> None:
    with stage.session() as session:
        with pytest.raises(InfeasibleConfig) as caught:
            launch(session, stage, "--fail", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
        assert caught.value.failure.kind == "torch-oom"
        assert caught.value.failure.stage is LaunchStage.LOAD
        assert stage.candidates() == set()
        assert launch(session, stage, name="candidate-2").info["marker"] == "candidate-2"


def test_death_for_a_passing_reason_is_to_be_tried_again(stage) -> None:
    text = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer"
    with stage.session() as session, pytest.raises(TransientFailure) as caught:
        launch(session, stage, "--fail", text)
    assert caught.value.failure.kind == "gloo-closed"


def test_death_while_serving_is_found_by_check(stage) -> None:
    with stage.session() as session:
        server = launch(session, stage)
        stage.get("/die")
        stage.until(lambda: not stage.services.status(server.handle).running, "death")
        with pytest.raises(InfeasibleConfig) as caught:
            server.check()
        assert (caught.value.failure.kind, caught.value.failure.stage) == ("torch-oom", LaunchStage.SERVE)


def test_never_ready(stage) -> None:
    stage.limits["ready_timeout_s"] = 2.0
    with stage.session() as session, pytest.raises(InfeasibleConfig, match="not ready after 2 s") as caught:
        launch(session, stage, "--never-ready")
    assert caught.value.failure.kind == "never-ready"
    assert "ready to roll" in caught.value.failure.evidence[-1]
    stage.until(lambda: not stage.ours(), "the end of the watchdog")


def test_hung_in_a_stage(stage) -> None:
    stage.limits["stage_timeout_s"] = 3.0
    with stage.session() as session, pytest.raises(InfeasibleConfig, match=r"no progress for \d+ s in stage load") as caught:
        launch(session, stage, "--silent")
    assert (caught.value.failure.kind, caught.value.failure.stage) == ("hung", LaunchStage.LOAD)
    stage.until(lambda: not stage.ours(), "the end of the watchdog")


def test_should_stop_ends_the_launch(stage) -> None:
    stage.produce()
    with stage.session() as session, pytest.raises(Interrupted):
        session.launch(stage.spec("--silent"), on_stage=lambda *_: None, should_stop=lambda: True)
    assert stage.serving()["label"] == "production"
    assert stage.candidates() == set()


@pytest.mark.parametrize("how", [(), ("--clean-environment",)])
def test_grandchildren_of_a_stubborn_candidate_are_gone(stage, how: tuple[str, ...]) -> None:
    stage.limits["stop_timeout_s"] = 0.5
    pid_file = stage.folder / "grandchild"
    with stage.session() as session:
        launch(session, stage, "--stubborn", "--grandchild", str(pid_file), *how)
        pid = int(pid_file.read_text())
        assert pid in processes.table()
        session.stop()
        assert pid not in processes.table()
        assert stage.listener() is None


def interrupted_twice(session: HostSession, stage) -> None:
    with session:
        launch(session, stage)
        threading.Timer(0.6, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        raise KeyboardInterrupt


def test_ctrl_c_in_the_middle_and_again_while_restoring(stage) -> None:
    stage.produce("--start-s", "1")
    session = stage.session()
    with pytest.raises(KeyboardInterrupt):
        interrupted_twice(session, stage)
    assert stage.serving()["label"] == "production"
    assert stage.candidates() == set()
    assert any("bringing production back first" in notice for notice in stage.notices)


def test_production_that_does_not_come_back_is_said_loudly_with_the_command(stage, monkeypatch: pytest.MonkeyPatch) -> None:
    script = stage.folder / "sglang_start.py"
    script.write_text(Path(stage.server).read_text())
    before = stage.produce_with(stage.python, script=str(script))
    stage.limits["ready_timeout_s"] = 5.0
    script_text = script.read_text()

    def break_it() -> None:
        with stage.session() as session:
            launch(session, stage)
            script.write_text("raise SystemExit('broken')")

    with pytest.raises(NotRestored, match=r"production on port .* is not as it was") as caught:
        break_it()
    assert caught.value.exit_code == 5
    command = (caught.value.hint or "").removeprefix("on the host: ").partition(" — ")[0]
    script.write_text(script_text)
    done = stage.transport.run(command.split(), timeout_s=60)
    assert json.loads(done.stdout)["ok"] is True
    assert processes.arguments(stage.listener()) == list(before.args)
    assert list((stage.folder / "leases").iterdir()) == []


def test_production_that_fails_twice_is_started_again(stage) -> None:
    script = stage.folder / "sglang_start.py"
    tries = stage.folder / "tries"
    flaky = f"import pathlib; p = pathlib.Path({str(tries)!r}); n = p.read_text() if p.exists() else ''; p.write_text(n + 'x')\n"
    good = Path(stage.server).read_text()
    script.write_text(good)
    stage.produce_with(stage.python, script=str(script))
    head, _, rest = good.partition("import argparse")
    script.write_text(f"{head}{flaky}if len(n) < 2: raise SystemExit(1)\nimport argparse{rest}")
    with stage.session() as session:
        launch(session, stage)
    assert tries.read_text() == "xxx"
    assert stage.serving()["label"] == "production"


def test_a_lost_lease_means_that_nothing_is_touched_any_more(stage) -> None:
    stage.produce()
    with contextlib.ExitStack() as stack:
        session = stage.session(ttl_s=2.0)
        stack.enter_context(pytest.raises(StopStudy, match="the lease was lost"))
        stack.enter_context(session)
        server = launch(session, stage)
        session._heartbeat.stop()
        stage.until(lambda: (stage.serving() or {}).get("label") == "production", "the restore by the watchdog")
        restored = stage.listener()
        with pytest.raises(StopStudy, match="the lease was lost"):
            server.check()
        with pytest.raises(StopStudy, match="the lease was lost"):
            launch(session, stage, name="candidate-2")
        session.stop()
    assert stage.listener() == restored
    assert stage.candidates() == set()


def test_a_tuner_that_makes_no_progress_is_not_vouched_for(stage) -> None:
    stage.produce()
    with contextlib.ExitStack() as stack:
        session = stage.session(ttl_s=2.0, stall_s=0.5)
        stack.enter_context(pytest.raises(StopStudy, match="the lease was lost"))
        stack.enter_context(session)
        server = launch(session, stage)
        stage.until(lambda: (stage.serving() or {}).get("label") == "production", "the restore by the watchdog")
        server.check()


def test_one_long_step_that_was_announced_is_vouched_for(stage) -> None:
    with stage.session(ttl_s=2.0, stall_s=0.5) as session:
        server = launch(session, stage)
        session.touch(allow_s=60.0)
        begun = session._heartbeat.renewed
        stage.until(lambda: session._heartbeat.renewed > begun + 4.0, "renewals for longer than the time to live")
        server.check()
        assert stage.serving()["label"] == "candidate"


def test_production_that_somebody_starts_by_hand_is_left_to_them(stage) -> None:
    before = stage.produce()
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.raises(StopStudy, match=r"somebody started production by hand; now .*sglang_like.* listens on port"))
        session = stack.enter_context(stage.session())
        launch(session, stage)
        session.stop()
        by_hand = stage.produce()
        launch(session, stage, name="candidate-2")
    assert by_hand.poll() is None
    assert stage.listener() == by_hand.pid
    assert processes.arguments(by_hand.pid) == list(before.args)


def test_production_that_a_restore_brought_back_is_not_called_somebodys_hand(stage) -> None:
    stage.produce()
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.raises(StopStudy, match="the lease was lost"))
        session = stack.enter_context(stage.session())
        launch(session, stage)
        session.stop()
        (Path(session.folder) / "live").unlink()  # as the first thing of every restore, also of that after a boot
        stage.produce()
        session._await_silence()
