"""The SSH transport against a booted host: what comes through, what is refused, and how every kind of lost connection is noticed."""

from __future__ import annotations

import json
import selectors
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotuner.errors import AutotunerError, Refused, TransportError
from autotuner.model.host import SshTransport as SshDocument
from autotuner.transports.base import Completed, Stream
from autotuner.transports.ssh.transport import SshTransport
from tests.hosts.machine import Machine, until

pytestmark = pytest.mark.host

NOTICED_S = 20.0
"""A dead or hung peer is promised to be noticed within fifteen seconds; the rest is for a busy machine."""
HOSTILE = "x'; touch /tmp/no; $(id) `id`\n\\ \" !! %s é \udcff\n\n"


def document(machine: Machine, **changes: object) -> SshDocument:
    return SshDocument.model_validate({**machine.ssh_document(), **changes})


@pytest.fixture
def host(machine: Machine) -> Iterator[SshTransport]:
    transport = SshTransport(document(machine))
    yield transport
    transport.close()


def attempt(transport: SshTransport) -> Completed:
    try:
        return transport.run(["hostname"], timeout_s=20)
    finally:
        transport.close()


class Running:
    """A command that runs in a thread of its own."""

    def __init__(self, machine: Machine, transport: SshTransport, argv: list[str], *, again: bool = False) -> None:
        self.result: Completed | Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(transport, argv, again), daemon=True)
        self._thread.start()
        until(lambda: machine.out("pgrep", "-xf", "sleep 1234") or self.result, "the command on the host")

    def _run(self, transport: SshTransport, argv: list[str], again: bool) -> None:  # noqa: FBT001 - a thread's target
        try:
            self.result = transport.run(argv, timeout_s=600, again=again)
        except AutotunerError as error:
            self.result = error

    def end(self, patience_s: float = NOTICED_S) -> Completed | Exception | None:
        self._thread.join(patience_s)
        assert not self._thread.is_alive(), f"nothing was noticed within {patience_s:g} s"
        return self.result


def session_of(machine: Machine) -> str:
    """The sshd process that serves the connection which runs ``sleep 1234``."""
    pid = machine.out("pgrep", "-xof", "sleep 1234")
    while "sshd" not in machine.read(f"/proc/{pid}/comm"):
        pid = machine.out("ps", "-o", "ppid=", "-p", pid).strip()
    return pid


def test_arguments_environment_folder_and_input_come_through_as_they_are(machine: Machine, host: SshTransport) -> None:
    code = (
        "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['V'], os.getcwd(), sys.stdin.buffer.read().decode('latin-1')]))"
    )
    everything = bytes(range(256)) * 300
    argv = ["python3", "-c", code, HOSTILE, "", "-n", "a=b"]
    done = host.run(argv, timeout_s=30, env={"V": HOSTILE}, cwd="/var/tmp", stdin=everything)  # noqa: S108 - a folder of the host
    assert json.loads(done.stdout) == [argv[3:], HOSTILE, "/var/tmp", everything.decode("latin-1")], done.stderr  # noqa: S108
    assert not machine.exists("/tmp/no")  # noqa: S108
    assert host.run(["no-such-program"], timeout_s=20).returncode == 127
    assert host.run(["sh", "-c", "kill -9 $$"], timeout_s=20).returncode == 137


def test_much_output_of_both_kinds_while_much_is_sent_comes_through(machine: Machine, host: SshTransport) -> None:
    script = "head -c 6000000 /dev/zero; head -c 6000000 /dev/zero >&2; wc -c"
    done = host.run(["sh", "-c", script], timeout_s=120, stdin=b"x" * 6_000_000)
    assert (len(done.stderr), done.stdout.strip("\0\n ")) == (6_000_000, "6000000")
    assert host.run(["true"], timeout_s=20, stdin=b"x" * 6_000_000).ok  # it reads nothing of that


def test_a_command_that_times_out_is_killed_with_its_children(machine: Machine, host: SshTransport) -> None:
    with pytest.raises(TransportError, match="did not end within"):
        host.run(["sh", "-c", "sleep 1234 & sleep 1234; true"], timeout_s=1)
    until(lambda: not machine.out("pgrep", "-xf", "sleep 1234"), "the end of what timed out")
    assert host.run(["true"], timeout_s=20).ok
    assert host.interruptions == 0


@pytest.mark.parametrize("shell", ["/usr/local/bin/other-shell", "/bin/sh"])
def test_a_user_with_another_login_shell(machine: Machine, shell: str) -> None:
    machine.run(["ln", "-sf", "/bin/dash", "/usr/local/bin/other-shell"])
    machine.add_user("someone")
    machine.run(["usermod", "-s", shell, "someone"])
    assert attempt(SshTransport(document(machine, user="someone"))).ok


@pytest.mark.parametrize("startup", ["echo hello", "exit 3"])
def test_a_login_shell_that_talks_or_ends_is_refused_at_once(machine: Machine, startup: str) -> None:
    machine.add_user("someone")
    machine.write("/home/someone/.bashrc", f"{startup}\n")
    with pytest.raises(TransportError, match="login shell does not run a command cleanly"):
        attempt(SshTransport(document(machine, user="someone")))


def test_files_are_written_whole_with_mode_and_owner_and_read_back(machine: Machine, host: SshTransport) -> None:
    data, path = bytes(range(256)) * 4096, "/var/tmp/new folder/it's\na file"  # noqa: S108
    for content in (b"before", data):
        host.write(path, content, mode=0o640, owner="nobody:adm")
    assert host.read(path) == data
    assert host.read(path, offset=10, limit=5) == data[10:15]
    assert host.read(path, offset=len(data) + 10) == b""
    assert machine.out("stat", "-c", "%a %U:%G", path) == "640 nobody:adm"
    assert len(machine.out("ls", "-A", str(Path(path).parent)).splitlines()) == 2  # one name, of two lines
    assert host.exists(path)
    host.remove(path)
    host.remove(path)
    assert not host.exists(path)
    assert host.read("/proc/self/status").startswith(b"Name:")
    for missing in ("/none", "/etc/passwd/x"):
        with pytest.raises(FileNotFoundError):
            host.read(missing)


def test_a_full_disk_and_a_read_only_one_are_said_so_and_keep_what_was_there(machine: Machine, host: SshTransport) -> None:
    machine.small_disk("/small", 1)
    host.write("/small/file", b"before")
    machine.fill("/small")
    with pytest.raises(AutotunerError, match="No space left on device") as caught:
        host.write("/small/file", b"x" * 200_000)
    assert "free some space" in (caught.value.hint or "")
    assert host.read("/small/file") == b"before"
    assert machine.out("sh", "-c", "ls -A /small | grep -v fill") == "file"
    machine.unfill("/small")
    machine.read_only("/small")
    for act in (lambda: host.write("/small/file", b"x"), lambda: host.remove("/small/file")):
        with pytest.raises(AutotunerError, match="Read-only file system"):
            act()


def test_a_stream_is_readable_when_there_is_something_and_when_it_ended(machine: Machine, host: SshTransport) -> None:
    echo = host.stream(["cat"])
    assert echo.read() is None
    echo.write(b"hello")
    assert next_of(echo) == b"hello"
    echo.close()
    until(lambda: not machine.out("pgrep", "-x", "cat"), "the end of the program whose input was closed")
    noisy = host.stream(["sh", "-c", "head -c 3000000 /dev/zero >&2; echo done"])  # more than a channel's window
    assert next_of(noisy) == b"done\n"
    assert next_of(noisy) == b""
    noisy.close()
    many = [host.stream(["cat"]) for _ in range(20)]  # more than a connection has channels
    for number, stream in enumerate(many):
        stream.write(b"%d" % number)
    assert [next_of(stream) for stream in many] == [b"%d" % number for number in range(20)]
    for stream in many:
        stream.close()


def next_of(stream: Stream) -> bytes:
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            assert selector.select(NOTICED_S), "the stream says nothing"
            if (data := stream.read()) is not None:
                return data


def test_many_threads_share_a_connection(host: SshTransport) -> None:
    results: list[str] = []

    def work(number: int) -> None:
        results.extend(host.run(["echo", f"{number}"], timeout_s=60).stdout for _ in range(5))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted(f"{number}\n" for number in range(20) for _ in range(5))


# --- who is on the other end -----------------------------------------------------------------------------------------------------


def test_an_unknown_key_is_refused_with_its_fingerprint_and_the_hint_makes_it_known(machine: Machine, tmp_path: Path) -> None:
    file = tmp_path / "known"
    with pytest.raises(Refused, match="unknown host key") as caught:
        attempt(SshTransport(document(machine, known_hosts=str(file))))
    shown = machine.out("ssh-keygen", "-lf", "/etc/ssh/ssh_host_ed25519_key.pub").split()[1]
    assert shown in caught.value.message
    command = (caught.value.hint or "").rpartition("same: ")[2]
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    assert attempt(SshTransport(document(machine, known_hosts=str(file)))).ok


def test_a_changed_key_is_refused_with_both_fingerprints_and_nothing_is_done(machine: Machine, host: SshTransport) -> None:
    before = machine.out("ssh-keygen", "-lf", "/etc/ssh/ssh_host_ed25519_key.pub").split()[1]
    assert host.run(["true"], timeout_s=20).ok
    machine.run(["sh", "-c", "rm /etc/ssh/ssh_host_*; ssh-keygen -q -A; systemctl restart ssh"])
    until(machine.reachable, "sshd")
    after = machine.out("ssh-keygen", "-lf", "/etc/ssh/ssh_host_ed25519_key.pub").split()[1]
    assert host.run(["true"], timeout_s=20).ok  # the connection that stands was checked
    with pytest.raises(Refused, match="has changed") as caught:
        attempt(host.fresh())
    assert before in caught.value.message
    assert after in caught.value.message


def test_hashed_names_and_other_ports_are_known(machine: Machine, second_sshd: str, tmp_path: Path) -> None:
    file = tmp_path / "known"
    file.write_text(f"{machine.known_hosts.read_text()}[{machine.address}]:2222 {second_sshd}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    assert machine.address not in file.read_text()
    assert attempt(SshTransport(document(machine, known_hosts=str(file)))).ok
    assert attempt(SshTransport(document(machine, known_hosts=str(file), port=2222))).ok


@pytest.fixture
def second_sshd(machine: Machine) -> str:
    """Another sshd on port 2222 with a key of its own, which is returned."""
    machine.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/etc/ssh/other"])
    machine.run(["systemd-run", "-q", "--unit=second", "/usr/sbin/sshd", "-D", "-p", "2222", "-h", "/etc/ssh/other"])
    until(lambda: ":2222" in machine.out("ss", "-tln"), "the second sshd")
    return " ".join(machine.read("/etc/ssh/other.pub").split()[:2])


def test_a_bastion_and_the_host_behind_it_are_both_checked(machine: Machine, second_sshd: str, tmp_path: Path) -> None:
    behind = {"hostname": "127.0.0.1", "port": 2222, "proxy_jump": f"root@{machine.address}"}
    bastion = machine.known_hosts.read_text()
    right, wrong, nobody = (tmp_path / name for name in ("right", "wrong", "nobody"))
    right.write_text(f"{bastion}[127.0.0.1]:2222 {second_sshd}\n")
    wrong.write_text(f"{bastion}[127.0.0.1]:2222 {' '.join(bastion.split()[1:3])}\n")
    nobody.write_text(f"[127.0.0.1]:2222 {second_sshd}\n")
    assert attempt(SshTransport(document(machine, **behind, known_hosts=str(right)))).ok
    with pytest.raises(Refused, match=r"\[127.0.0.1\]:2222 presents .*, known is"):
        attempt(SshTransport(document(machine, **behind, known_hosts=str(wrong))))
    with pytest.raises(Refused, match=f"unknown host key: {machine.address} presents"):
        attempt(SshTransport(document(machine, **behind, known_hosts=str(nobody))))
    with pytest.raises(TransportError, match="a channel was refused"):
        attempt(SshTransport(document(machine, **{**behind, "port": 9}, known_hosts=str(right))))


def test_the_hint_for_an_unknown_key_behind_a_bastion_makes_the_key_of_that_machine_known(
    machine: Machine, second_sshd: str, tmp_path: Path
) -> None:
    """The address means another machine here than on the bastion: nothing that is fetched from here could be right."""
    known = tmp_path / "known"
    known.write_text(machine.known_hosts.read_text())
    behind = document(machine, hostname="127.0.0.1", port=2222, proxy_jump=f"root@{machine.address}", known_hosts=str(known))
    with pytest.raises(Refused, match=r"unknown host key: \[127.0.0.1\]:2222 presents") as caught:
        attempt(SshTransport(behind))
    subprocess.run(["sh", "-c", (caught.value.hint or "").rpartition("same: ")[2]], check=True)
    assert known.read_text().splitlines()[-1] == f"[127.0.0.1]:2222 {second_sshd}"
    assert attempt(SshTransport(behind)).ok


def test_who_is_not_let_in_is_told_at_once_even_for_what_may_be_repeated(machine: Machine) -> None:
    for changes in ({"user": "nobody2"}, {"port": 23}):
        transport = SshTransport(document(machine, **changes))
        with pytest.raises(TransportError, match=r"login was refused|nothing listens"):
            transport.exists("/")
        transport.close()


# --- lost connections ------------------------------------------------------------------------------------------------------------

FAULTS: dict[str, tuple[Callable[[Machine, str], object], Callable[[Machine, str], object]]] = {
    "link cut": (lambda machine, _: machine.cut(), lambda machine, _: machine.join()),
    "packets lost": (lambda machine, _: machine.drop(), lambda machine, _: machine.undrop()),
    "sshd hangs": (
        lambda machine, pid: machine.run(["kill", "-STOP", pid]),
        lambda machine, pid: machine.run(["kill", "-KILL", pid], check=False),
    ),
    "session killed": (lambda machine, pid: machine.run(["kill", "-KILL", pid]), lambda *_: None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_lost_peer_is_noticed_and_the_outcome_is_unknown(machine: Machine, host: SshTransport, fault: str) -> None:
    running = Running(machine, host, ["sleep", "1234"])
    before, session = host.interruptions, session_of(machine)
    strike, heal = FAULTS[fault]
    strike(machine, session)
    try:
        result = running.end()
        assert isinstance(result, TransportError)
        assert "how it ended is not known" in result.message
        assert host.interruptions > before
    finally:
        heal(machine, session)
    assert host.run(["true"], timeout_s=20, again=True).ok  # over a new connection


@pytest.mark.parametrize(("fault", "losses"), [("link cut", 2), ("session killed", 1)])  # a silent loss is a gap first
def test_what_may_be_repeated_is_repeated_over_a_new_connection(machine: Machine, host: SshTransport, fault: str, losses: int) -> None:
    script = 'echo x >>/run/count; [ "$(wc -l </run/count)" -gt 1 ] || sleep 1234; echo done'
    running = Running(machine, host, ["sh", "-c", script], again=True)
    session = session_of(machine)
    strike, heal = FAULTS[fault]
    strike(machine, session)
    try:
        until(lambda: host.interruptions >= losses, "the loss")
    finally:
        heal(machine, session)
    result = running.end(patience_s=60.0)
    assert isinstance(result, Completed)
    assert result.stdout == "done\n"
    assert machine.read("/run/count") == "x\nx\n"


def test_waiting_for_a_host_that_stays_away_ends(machine: Machine) -> None:
    transport = SshTransport(document(machine), retry_s=3.0)
    assert transport.run(["true"], timeout_s=20).ok
    machine.run(["systemctl", "stop", "ssh"])
    machine.run(["pkill", "-KILL", "-f", "sshd:"])
    with pytest.raises(TransportError, match="nothing listens"):
        transport.exists("/")
    transport.close()


def test_a_short_gap_is_survived_and_counted(machine: Machine, host: SshTransport) -> None:
    running = Running(machine, host, ["sh", "-c", "sleep 1234; echo done"])
    machine.cut()
    try:
        until(lambda: host.interruptions, "the gap")
    finally:
        machine.join()
    machine.run(["pkill", "-xf", "sleep 1234"])
    result = running.end(patience_s=60.0)
    assert isinstance(result, Completed)
    assert result.stdout == "done\n"
    assert host.interruptions == 1


def test_a_closed_transport_does_not_connect_again(host: SshTransport) -> None:
    assert host.run(["true"], timeout_s=20).ok
    host.close()
    with pytest.raises(TransportError, match="was closed"):
        host.exists("/")


def test_the_round_trip_is_measured(host: SshTransport) -> None:
    assert host.run(["true"], timeout_s=20).ok
    until(lambda: host.rtt_s is not None, "a first answer to the heartbeat")
