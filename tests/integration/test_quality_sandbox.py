"""Generated code that attacks: every attack stays in, is told apart, and the next answer is judged as if nothing had been."""

from __future__ import annotations

import ast
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from autotuner.quality.bubblewrap import Bubblewrap
from autotuner.quality.probe import find_sandbox
from autotuner.quality.sandbox import MEMORY_BYTES, OUTPUT_BYTES, PROCESSES, Sandbox
from tests.generated_code import attack, sandbox_or_skip, solved, value

SECRET = "hunter2-of-the-tuner"  # noqa: S105 - what the attacks look for


@pytest.fixture(scope="module")
def state(tmp_path_factory) -> Path:
    """A state folder of the tuner with something in it, readable by everybody as by carelessness."""
    folder = tmp_path_factory.mktemp("state")
    (folder / "results.jsonl").write_text(SECRET)
    for path in (folder.parent, folder):
        path.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def sandbox(state) -> Sandbox:
    return sandbox_or_skip(state)


@pytest.fixture(autouse=True)
def still_judging(request):
    """Whatever an answer did, the next one is judged."""
    yield
    if "sandbox" in request.fixturenames:
        assert solved(request.getfixturevalue("sandbox"))


# --- using up ---------------------------------------------------------------------------------------------------------------------


def test_a_fork_bomb_stops_at_the_limit(sandbox):
    body = """
made = 0
for _ in range(500):
    try:
        pid = os.fork()
    except OSError:
        return made
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    made += 1
return made
"""
    made = value(attack(sandbox, body))

    assert isinstance(made, int)
    assert made < PROCESSES


def test_a_fork_bomb_without_an_end_is_contained(sandbox):
    values = attack(sandbox, "while True:\n    try:\n        os.fork()\n    except OSError:\n        pass")

    assert values.how in ("timeout", "killed", "no-values")
    assert values.found == ()


def test_a_memory_bomb_is_contained(sandbox):
    body = """
held = []
try:
    while len(held) < 64:
        held.append(b"x" * (16 << 20))
except MemoryError:
    pass
return len(held) * (16 << 20)
"""
    values = attack(sandbox, body)

    assert values.how == "killed" or int(str(value(values))) <= MEMORY_BYTES


def test_memory_outside_of_the_process_is_limited_as_well(sandbox):
    body = """
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
got = 0
for number in range(64):
    kept = libc.shmget(0, 64 << 20, 0o1600)
    if kept < 0:
        break
    at = libc.shmat(kept, None, 0)
    ctypes.memset(at, 1, 64 << 20)
    libc.shmdt(ctypes.c_void_p(at))
    got += 64 << 20
for folder in ("/dev", "/dev/shm", "/", "/gate", "/run", "/tmp", "/var/tmp"):
    for number in range(400):
        try:
            with open(f"{folder}/filled-{number}", "wb") as file:
                got += file.write(bytes(1000 << 10))
        except OSError:
            break
return got
"""
    values = attack(sandbox, body)

    assert values.how == "killed" or int(str(value(values))) <= MEMORY_BYTES


def test_an_endless_loop_is_ended(sandbox):
    values = attack(
        sandbox, "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    )

    assert values.how in ("timeout", "killed")


def test_sleeping_for_ever_is_ended(sandbox):
    assert attack(sandbox, "time.sleep(10 ** 6)").how == "timeout"


def test_printing_for_ever_ends_with_a_full_file_and_no_memory_of_ours(sandbox):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    values = attack(
        sandbox, "while True:\n    for fd in (1, 2, 3, 4, 5):\n        try: os.write(fd, b'x' * 65536)\n        except OSError: pass"
    )
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    assert values.how in ("killed", "timeout", "no-values")
    assert grown_kib * 1024 < 16 * OUTPUT_BYTES


def test_a_large_file_is_refused(sandbox):
    body = """
got = 0
try:
    with open("/tmp/large", "wb", buffering=0) as file:
        for _ in range(16):
            got += file.write(bytes(256 << 10))
except OSError:
    pass
return got
"""
    assert int(str(value(attack(sandbox, body)))) <= OUTPUT_BYTES


def test_open_files_are_limited(sandbox):
    body = "held = []\ntry:\n    while True: held.append(open('/dev/null'))\nexcept OSError:\n    return len(held)"

    assert int(str(value(attack(sandbox, body)))) < 64


def test_what_stands_still_on_this_side_is_only_the_calling_thread(sandbox):
    """The rest of the tuner, its sign of life among it, goes on while an answer runs."""
    ticks = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(0.02):
            ticks.append(1)

    thread = threading.Thread(target=tick)
    thread.start()
    attack(sandbox, "time.sleep(1)\nreturn 1")
    stop.set()
    thread.join()

    assert len(ticks) > 5


# --- getting out ------------------------------------------------------------------------------------------------------------------


def test_nothing_of_the_tuner_can_be_read(sandbox, state, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    body = """
found = []
places = ["/root", "/home", "/etc", "/var", "/opt", "/srv", "/run", "/tmp", *given[1:]]
for path in ("/proc/1/environ", "/proc/self/environ", "/proc/%d/environ" % os.getppid(), "/etc/shadow", "/proc/kcore"):
    places.append(path)
for place in places:
    for folder, _, names in (os.walk(place) if os.path.isdir(place) else [(os.path.dirname(place), [], [os.path.basename(place)])]):
        for name in names:
            path = os.path.join(folder, name)
            try:
                with open(path, "rb") as file:
                    if given[0].encode() in file.read(1 << 16):
                        found.append(path)
            except OSError:
                continue
for path in ("/etc/shadow", "/root/.ssh", "/root/.bashrc"):
    try:
        open(path).close()
        found.append(path)
    except IsADirectoryError:
        found.append(path)
    except OSError:
        pass
return found + [name for name, kept in os.environ.items() if given[0] in kept]
"""
    reversed_body = body.replace("given[0]", "given[0][::-1]")  # the word itself stands in what it is asked

    assert value(attack(sandbox, reversed_body, SECRET[::-1], str(state), str(Path.home()))) == {"list": []}


def test_nothing_can_be_written_outside(sandbox, state):
    body = """
found = []
for place in given:
    for path in (place, place + "/planted"):
        try:
            with open(path, "a") as file:
                file.write("planted")
            found.append(path)
        except OSError:
            pass
return found
"""
    places = [
        "/usr/planted",
        "/etc/passwd",
        "/usr/bin",
        str(state),
        str(state / "results.jsonl"),
        "/var/tmp",  # noqa: S108
        "/dev/shm",  # noqa: S108
        "/root",
        "/gate/answer.py",
    ]

    assert value(attack(sandbox, body, *places)) == {"list": []}

    assert (state / "results.jsonl").read_text() == SECRET
    assert not list(state.glob("planted"))


def test_no_network_is_reached(sandbox):
    body = """
reached = []
for family, address in ((socket.AF_INET, ("127.0.0.1", given[0])), (socket.AF_INET6, ("::1", given[0])), (40, (2, given[0]))):
    try:
        with socket.socket(family) as asked:
            asked.settimeout(2)
            asked.connect(address)
        reached.append(family)
    except OSError:
        pass
return reached
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        assert value(attack(sandbox, body, server.getsockname()[1])) == {"list": []}
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_socket_of_this_machine_is_not_reached(sandbox, state):
    path = state / "listening"
    body = "asked = socket.socket(socket.AF_UNIX)\nfor address in given:\n    asked.connect(address)\nreturn 'connected'"
    abstract = f"\0autotuner-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as other:
        server.bind(str(path))
        other.bind(abstract)
        server.listen()
        other.listen()
        for address in (str(path), abstract):
            assert value(attack(sandbox, body, address)) != "connected"


def test_nobody_else_can_be_killed(sandbox):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as bystander:
        try:
            body = "for pid in (os.getppid(), *given, -1):\n    try: os.kill(pid, signal.SIGKILL)\n    except OSError: pass\nreturn 'tried'"
            attack(sandbox, body, bystander.pid, os.getpid(), os.getppid())
            time.sleep(0.2)

            assert bystander.poll() is None
        finally:
            bystander.kill()


def test_it_cannot_become_more_than_it_is(sandbox):
    body = """
libc = ctypes.CDLL(None, use_errno=True)
reached = []
for flag in (0x10000000, 0x00020000, 0x40000000, 0x20000000):
    if libc.unshare(flag) == 0:
        reached.append("unshare %x" % flag)
if libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0:
    reached.append("mount")
if libc.ptrace(16, 1, 0, 0) == 0:
    reached.append("ptrace")
for name, action in (("setuid", lambda: os.setuid(0)), ("setgid", lambda: os.setgid(0)), ("chroot", lambda: os.chroot("/tmp"))):
    try:
        action()
        reached.append(name)
    except OSError:
        pass
return reached
"""
    assert value(attack(sandbox, body)) == {"list": []}


def test_nothing_stays_behind(sandbox):
    word = f"left-behind-{os.getpid()}"
    body = """
for _ in range(2):
    if os.fork():
        return "gone"
    os.setsid()
os.execv("/bin/sh", ["sh", "-c", "sleep 300; echo " + given[0]])
"""
    attack(sandbox, body, word)

    def alive() -> bool:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if word in path.read_text(errors="replace"):
                    return True
            except OSError:
                continue
        return False

    until = time.monotonic() + 10
    while alive():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_it_ends_with_the_tuner():
    """A tuner that is killed leaves nothing that runs on. (systemd's units end by their own time.)"""
    if reasons := find_sandbox(kinds=[Bubblewrap]).reasons:
        pytest.skip(f"no sandbox: {'; '.join(reasons)}")
    word = f"orphan{os.getpid()}"
    script = (
        "from autotuner.quality.bubblewrap import Bubblewrap\nfrom autotuner.quality.sandbox import call\n"
        f'call(Bubblewrap(), \'import os\\ndef f(): os.execv("/bin/sh", ["sh", "-c", "sleep 300; echo {word}"])\', \'f\', [[]])'
    )
    with subprocess.Popen([sys.executable, "-c", script]) as tuner:
        until = time.monotonic() + 30
        while not _running(word):
            assert time.monotonic() < until
            time.sleep(0.02)
        tuner.send_signal(signal.SIGKILL)
    while _running(word):
        assert time.monotonic() < until
        time.sleep(0.02)


def _running(word: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            parts = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if parts[0] == b"sh" and word.encode() in parts[-2]:
            return True
    return False


AS_USER = """
import os, sys
from autotuner.quality.bubblewrap import Bubblewrap
from autotuner.quality.probe import find_sandbox
from autotuner.quality.sandbox import call
call(Bubblewrap(), "", "f", [])
os.setgroups([])
os.setgid(64900)
os.setuid(64900)
found = find_sandbox(kinds=[Bubblewrap])
assert found.sandbox is not None, found.reasons
forks = "import os\\ndef f():\\n made = 0\\n for _ in range(90):\\n  try: pid = os.fork()\\n  except OSError: break\\n"
forks += "  if not pid: __import__('time').sleep(60)\\n  made += 1\\n return made"
print(call(found.sandbox, forks, "f", [[]]).found[0])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="every other test here shows it: this is no root")
def test_a_user_who_is_not_root_has_the_same_sandbox():
    if reasons := find_sandbox(kinds=[Bubblewrap]).reasons:
        pytest.skip(f"no sandbox: {'; '.join(reasons)}")
    done = subprocess.run([sys.executable, "-c", AS_USER], capture_output=True, text=True, check=False, cwd="/", timeout=120)

    assert done.returncode == 0, done.stderr
    assert ast.literal_eval(done.stdout)["value"] < PROCESSES
