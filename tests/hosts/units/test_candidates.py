"""Candidates as units: what they are given, how they end, and who ended them."""

from __future__ import annotations

import random

import pytest

from autotuner.errors import StopStudy
from tests.hosts.inside import LIGHT, PROD, Night, invocation
from tests.hosts.machine import Machine, until

pytestmark = pytest.mark.host


@pytest.fixture
def night(host: Machine):
    night = Night(host)
    night.take()
    yield night
    night.ask(keep=False)
    night.assert_over()
    assert host.healthy()


def test_it_serves_and_is_stopped_with_its_children(night: Night):
    script = "trap '' TERM; sh -c 'trap \"\" TERM; sleep 600 & wait; sleep 600' & echo up; while :; do sleep 1; done"
    handle = night.start("/bin/sh", "-c", script)
    until(lambda: night.services.log(handle) == b"up\n", "the log")
    assert night.services.status(handle).running
    assert night.machine.out("pgrep", "-x", "sleep") != ""
    night.services.stop(handle, timeout_s=2)
    night.services.stop(handle, timeout_s=2)
    assert night.machine.out("pgrep", "-x", "sleep") == ""
    status = night.services.status(handle)
    assert (status.running, status.by_hand) == (False, False)
    assert night.services.log(handle, offset=3) == b""


def test_the_listener_is_known_as_its_own(night: Night):
    night.candidate()
    state = night.side.state
    assert night.call("owned", port=30000, manager="systemd", state=state, name="candidate-1")["ours"]
    assert not night.call("owned", port=30000, manager="systemd", state=state, name="candidate-2")["ours"]


@pytest.mark.parametrize(
    ("script", "exit_code"), [("exit 3", 3), ("exit 0", 0), ("kill -KILL $$", -9), ("kill -SEGV $$", -11), ("kill -TERM $$", -15)]
)
def test_how_it_ended(night: Night, script: str, exit_code: int):
    handle = night.start("/bin/sh", "-c", f"echo said; {script}")
    until(lambda: not night.services.status(handle).running, "the end")
    status = night.services.status(handle)
    expected = 0 if script.startswith("kill -TERM") else exit_code  # systemd counts SIGTERM as a clean end
    assert status.exit_code in {expected, exit_code}
    assert (status.by_hand, status.out_of_memory) == (False, False)
    assert night.services.log(handle) == b"said\n"


def test_the_log_of_a_run_that_the_journal_was_too_slow_for(night: Night):
    """The journal cannot tell any more which run a line is of when it reads it after the end of the process."""
    before = night.start("/bin/echo", "the run before")
    until(lambda: night.services.log(before) == b"the run before\n", "the log of the run before")
    night.machine.run(["pkill", "-STOP", "systemd-journal"])
    try:
        handle = night.start("/bin/sh", "-c", "echo said; exit 3")
        ended = ["systemctl", "show", "--property=Result", "--value", "autotuner-30000-candidate-1"]
        until(lambda: night.machine.out(*ended) == "exit-code", "the end")
    finally:
        night.machine.run(["pkill", "-CONT", "systemd-journal"])
    assert night.services.status(handle).exit_code == 3
    assert night.services.log(handle) == b"said\n"


def test_the_same_name_can_be_started_again_after_it_failed(night: Night):
    first = night.start("/bin/false")
    until(lambda: not night.services.status(first).running, "the end")
    assert night.services.status(first).exit_code == 1
    second = night.start("/bin/sh", "-c", "echo again; sleep 600")
    until(lambda: night.services.log(second) == b"again\n", "the log of the second only")


def test_a_stop_by_hand_is_told_from_an_end_of_its_own(night: Night):
    handle = night.candidate()
    night.machine.run(["systemctl", "stop", "autotuner-30000-candidate-1"])
    assert night.services.status(handle).by_hand


def test_a_stop_by_hand_of_a_server_that_ends_with_an_error(night: Night):
    handle = night.start("/bin/sh", "-c", "trap 'exit 7' TERM; echo up; while :; do sleep 0.1; done")
    until(lambda: night.services.log(handle) == b"up\n", "the log")
    night.machine.run(["systemctl", "stop", "autotuner-30000-candidate-1"])
    status = night.services.status(handle)
    assert (status.exit_code, status.by_hand) == (7, True)


def test_starting_production_by_hand_ends_the_candidate_and_the_session(night: Night):
    handle = night.candidate()
    night.machine.run(["systemctl", "start", PROD])
    until(lambda: night.services.status(handle).by_hand, "the verdict")
    assert night.state()["by_hand"] == "prod.service was started by hand"
    before = invocation(night.machine)
    assert night.call("stop-production", session=night.folder, token=night.token)["kind"] == "by-hand"
    with pytest.raises(StopStudy, match="started by hand"):
        night.candidate(name="candidate-2")
    night.ask(keep=True)
    night.until_restored()
    assert invocation(night.machine) == before


def test_hostile_arguments_and_environment_arrive_byte_for_byte(night: Night):
    chosen = random.Random(7)
    alphabet = [
        "$",
        "${HOME}",
        "$$",
        "%H",
        "%%",
        "\\",
        "\\x41",
        "'",
        '"',
        " ",
        "\n",
        "\t",
        ";",
        "é",
        "漢",
        "\x01",
        "\udcff",
        "{}",
        "-",
        "a",
        "*",
    ]
    words = ["".join(chosen.choice(alphabet) for _ in range(chosen.randint(0, 12))) for _ in range(60)]
    argv = (
        "/bin/sh",
        "-c",
        'printf "%s\\0" "$@" | od -An -v -tx1 | tr -d " \\n"; echo; printf %s "$HOSTILE" | od -An -v -tx1 | tr -d " \\n"; echo',
        "sh",
    )
    handle = night.start(*argv, *words, env={"HOSTILE": "".join(words)})
    until(lambda: not night.services.status(handle).running, "the end")
    first, second = night.services.log(handle).decode().split()
    assert bytes.fromhex(first) == b"".join(word.encode(errors="surrogateescape") + b"\0" for word in words)
    assert bytes.fromhex(second) == "".join(words).encode(errors="surrogateescape")


def test_secrets_reach_the_process_and_nothing_else(night: Night):
    night.machine.write("/root/token", "canary-7f3a\n", mode=0o600)
    script = 'test "${TOKEN%-7f3a}" = canary && echo yes; sleep 600'
    handle = night.start("/bin/sh", "-c", script, secrets={"TOKEN": "file:/root/token"})
    until(lambda: night.services.log(handle) == b"yes\n", "the log")
    found = night.machine.out("sh", "-c", "grep -rl canary-7f /run/systemd /run/autotuner /etc /var/lib/autotuner /var/log 2>/dev/null")
    assert found == ""
    shown = night.machine.out("systemctl", "show", "autotuner-30000-candidate-1") + night.machine.out("journalctl", "-o", "verbose")
    assert "canary-7f" not in shown
    with pytest.raises(StopStudy, match="/root/nope: No such file"):
        night.start("/bin/true", name="candidate-2", secrets={"TOKEN": "file:/root/nope"})


def test_a_program_or_folder_that_is_not_there_is_named(night: Night):
    with pytest.raises(StopStudy, match="/no/python: No such file"):
        night.start("/no/python")
    with pytest.raises(StopStudy, match="/no/folder: No such file"):
        night.start("/bin/true", cwd="/no/folder")


def test_a_log_that_is_not_text_and_not_short(night: Night):
    script = r"printf 'a\377b\n'; head -c 200000 /dev/zero | tr '\0' x; echo; seq 30000; echo end"
    handle = night.start("/bin/sh", "-c", script)
    until(lambda: not night.services.status(handle).running, "the end")
    text, chunk = b"", b"-"
    while chunk:
        chunk = night.services.log(handle, offset=len(text))
        text += chunk
    assert text == b"a\xffb\n" + b"x" * 200000 + b"\n" + b"".join(b"%d\n" % n for n in range(1, 30001)) + b"end\n"


def test_out_of_memory_is_told_from_a_kill(night: Night):
    code = "import time; time.sleep(2); kept = [bytearray(1 << 20) for _ in range(300)]"
    handle = night.start(LIGHT, "-c", code)
    night.machine.run(["systemctl", "set-property", "--runtime", "autotuner-30000-candidate-1.service", "MemoryMax=60M"])
    until(lambda: not night.services.status(handle).running, "the end")
    status = night.services.status(handle)
    assert (status.exit_code, status.out_of_memory, status.by_hand) == (-9, True, False)
    night.machine.run(["sh", "-c", "rm -rf /run/systemd/system.control/autotuner*"])


def test_the_same_start_again_is_answered_with_the_same_server(night: Night):
    request = {
        **night.services._request("candidate-1"),
        "session": night.folder,
        "mark": "candidate-1/1",
        "argv": ["/bin/sleep", "600"],
    }
    request = {**request, "env": {}, "cwd": "/", "secrets": {}}
    first = night.side.call("start", request)
    assert night.side.call("start", request) == first
    assert "runs already" in night.side.call("start", {**request, "mark": "candidate-1/2"})["error"]
