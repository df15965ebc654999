"""Logging in with real keys and a real agent, to a server on the other end of a socket pair."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import pytest

from autotuner.errors import AutotunerError, UsageError
from autotuner.model.host import SshTransport as SshDocument
from autotuner.transports.ssh.failures import NotAdmitted
from autotuner.transports.ssh.login import log_in
from autotuner.transports.ssh.settings import targets

HOST_KEY = paramiko.ECDSAKey.generate()
Try = Callable[..., AutotunerError | None]


class Server(paramiko.ServerInterface):
    """Lets in whoever has the key."""

    def __init__(self, accepted: bytes) -> None:
        self.accepted = accepted

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL if key.asbytes() == self.accepted else paramiko.AUTH_FAILED


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A key that opens the server; there is no agent, and the home folder is empty."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / ".ssh").mkdir()
    return made(tmp_path / "a key")


def made(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


@pytest.fixture
def attempt(key: Path) -> Try:
    """Log in by a document with these values; what came of it, ``None`` when the way in was open."""
    (key.parent / "known").write_text(f"h {HOST_KEY.get_name()} {HOST_KEY.get_base64()}\n")
    accepted = paramiko.PKey.from_path(key).asbytes()

    def log(**values: object) -> AutotunerError | None:
        (target,) = targets(
            SshDocument.model_validate({"type": "ssh", "hostname": "h", "user": "u", "known_hosts": str(key.parent / "known"), **values})
        )
        ours, theirs = socket.socketpair()
        server = paramiko.Transport(theirs)
        server.add_server_key(HOST_KEY)
        server.start_server(server=Server(accepted), event=threading.Event())
        try:
            log_in(ours, target).close()
        except AutotunerError as error:
            return error
        finally:
            server.close()
        return None

    return log


def test_a_key_that_others_can_read_is_refused_as_ssh_refuses_it(attempt: Try, key: Path) -> None:
    assert attempt(identity_file=str(key)) is None
    key.chmod(0o640)
    refused = attempt(identity_file=str(key))
    assert isinstance(refused, UsageError)
    assert refused.message == f"{key} can be read by others (mode 0640), so it is no secret and is not used"
    assert refused.hint == f"chmod 600 '{key}'"


def test_a_default_key_that_is_there_and_not_used_is_told(attempt: Try, key: Path) -> None:
    default = made(key.parent / ".ssh" / "id_ed25519")
    default.chmod(0o644)
    refused = attempt()
    assert isinstance(refused, NotAdmitted)
    assert f"offered: nothing; not offered: {default} can be read by others (mode 0644)" in refused.message
    assert f"chmod 600 {default}" in str(refused.hint)
    default.unlink()
    assert str(attempt()).endswith("offered: nothing; no key was found")


def test_a_file_that_is_no_key_is_told_in_words_of_ours(attempt: Try, key: Path) -> None:
    other = key.parent / "other"
    for content in (
        b"",
        b"no key",
        b"-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\n",
        key.with_suffix(".pub").read_bytes(),
    ):
        other.write_bytes(content)
        other.chmod(0o600)
        refused = attempt(identity_file=str(other))
        assert isinstance(refused, UsageError)
        assert refused.message == f"{other} is not a private key that can be used"
        assert refused.hint == f"it must be a private ed25519, ECDSA or RSA key; check it with ssh-keygen -y -f {other}"


@contextlib.contextmanager
def agent(socket_path: Path) -> Iterator[None]:
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(socket_path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 30
        while not socket_path.exists():
            assert time.monotonic() < deadline, "no agent"
            time.sleep(0.02)
        try:
            yield
        finally:
            process.terminate()


def test_what_there_is_of_an_agent_is_told(attempt: Try, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(attempt(agent=True)).endswith("offered: nothing; SSH_AUTH_SOCK is not set, so no agent is known here")
    path = key.parent / "s"
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    assert str(attempt(agent=True)).endswith(f"the agent at {path} (SSH_AUTH_SOCK) does not answer: No such file or directory")
    with agent(path):
        assert str(attempt(agent=True)).endswith(f"offered: nothing; the agent at {path} (SSH_AUTH_SOCK) holds no keys")
        other = made(key.parent / "other")
        subprocess.run(["ssh-add", "-q", str(other)], check=True)
        refused = str(attempt(agent=True))
        assert "offered: agent key " in refused
        assert refused.endswith("holds 1 key")
        subprocess.run(["ssh-add", "-q", str(key)], check=True)
        assert attempt(agent=True) is None


def test_something_else_behind_the_agents_socket_is_told(attempt: Try, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = key.parent / "s"
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(path))
        stranger.listen()
        monkeypatch.setattr("autotuner.transports.ssh.agent._TIMEOUT_S", 0.2)
        assert str(attempt(agent=True)).endswith("does not answer: no answer in time")


def test_the_command_to_try_by_hand_does_as_was_done_here(attempt: Try, key: Path) -> None:
    key.chmod(0o600)
    strange = made(key.parent / "it's; id")
    refused = attempt(identity_file=str(strange), port=2222, known_hosts=str(key.parent / "known"))
    assert "unknown host key" in str(refused)  # it is known under port 22
    (key.parent / "known").write_text(f"[h]:2222 {HOST_KEY.get_name()} {HOST_KEY.get_base64()}\n")
    refused = attempt(identity_file=str(strange), port=2222)
    command = shlex.split(str(refused.hint if refused else "").partition("by hand: ")[2])
    assert command[-2:] == ["u@h", "true"]
    assert options_of(command) >= {
        f"identityfile {strange}",
        f"userknownhostsfile {key.parent}/known",
        "globalknownhostsfile none",
        "identitiesonly yes",
        "port 2222",
        "user u",
        "hostname h",
        "batchmode yes",
    }


def test_bastions_are_gone_through_by_hand_as_here(key: Path) -> None:
    *_, last = targets(
        SshDocument.model_validate(
            {"type": "ssh", "hostname": "::1", "user": "u", "identity_file": str(key), "known_hosts": "/k h", "proxy_jump": "a@x:23,b@y"}
        )
    )
    proxy = next(line for line in options_of(list(last.by_hand())) if line.startswith("proxycommand "))
    outer = shlex.split(proxy.partition(" ")[2].replace("%%", "%"))
    assert (outer[0], outer[-3:]) == ("ssh", ["b@y", "-W", "[%h]:%p"])
    inner = next(line for line in options_of(outer[:-2]) if line.startswith("proxycommand "))
    assert shlex.split(inner.partition(" ")[2])[-3:] == ["a@x", "-W", "[%h]:%p"]
    assert {f"identityfile {key}", "port 22", "hostname y", "user b"} <= options_of(outer[:-2])


def options_of(command: list[str]) -> set[str]:
    """What ssh itself understands of a command line."""
    words = [word for word in command[1:] if word not in {"-v", "true"}]
    done = subprocess.run(
        ["ssh", "-G", *words], capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"], "HOME": "/none"}
    )
    return set(done.stdout.splitlines())
