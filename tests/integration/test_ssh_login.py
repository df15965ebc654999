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

from autotuner.errors import AutotunerError, Refused, UsageError
from autotuner.model.host import SshTransport as SshDocument
from autotuner.transports.ssh.failures import Lost, NotAdmitted
from autotuner.transports.ssh.login import log_in
from autotuner.transports.ssh.settings import targets

RIGHT = "right"
HOST_KEY = paramiko.ECDSAKey.generate()
LINE = f"{HOST_KEY.get_name()} {HOST_KEY.get_base64()}"
Try = Callable[..., AutotunerError | None]


class Server(paramiko.ServerInterface):
    """Lets in whoever has the key, or the password ``RIGHT`` where passwords are accepted."""

    def __init__(self, accepted: bytes, methods: str) -> None:
        self.accepted = accepted
        self.methods = methods

    def get_allowed_auths(self, username: str) -> str:
        return self.methods

    def check_auth_password(self, username: str, password: str) -> int:
        return paramiko.AUTH_SUCCESSFUL if password == RIGHT else paramiko.AUTH_FAILED

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

    def log(*, methods: str = "publickey", **values: object) -> AutotunerError | None:
        target = targets(
            SshDocument.model_validate({"type": "ssh", "hostname": "h", "user": "u", "known_hosts": str(key.parent / "known"), **values})
        )[0]
        ours, theirs = socket.socketpair()
        server = paramiko.Transport(theirs)
        server.add_server_key(HOST_KEY)
        server.start_server(server=Server(accepted, methods), event=threading.Event())
        try:
            log_in(ours, target).close()
        except AutotunerError as error:
            return error
        finally:
            ours.close()
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


def test_the_hint_for_an_unknown_key_makes_exactly_the_key_known_that_was_seen(attempt: Try, key: Path) -> None:
    known = key.parent / "it's known"
    for values, name in (
        ({"port": 2222}, "[h]:2222"),
        ({"hostname": "fe80::1%e"}, "fe80::1%e"),
        ({"hostname": "x", "proxy_jump": "h:23"}, "[h]:23"),
    ):
        known.write_text("g ssh-ed25519 AAAA")  # not ended by a newline
        refused = attempt(identity_file=str(key), known_hosts=str(known), **values)
        assert isinstance(refused, Refused)
        fingerprint = subprocess.run(
            ["ssh-keygen", "-lf", "-"], input=f"{LINE}\n", capture_output=True, text=True, check=True
        ).stdout.split()[1]
        assert f"unknown host key: {name} presents {HOST_KEY.get_name()} {fingerprint}, which" in refused.message
        before, _, command = str(refused.hint).partition("only if it is the same: ")
        assert "compare the fingerprint on that machine's own console (ssh-keygen -lf " in before
        subprocess.run(["/bin/sh", "-c", command], check=True, env={"PATH": "/nowhere"})  # builtins of the shell alone: nothing is fetched
        assert known.read_text() == f"g ssh-ed25519 AAAA\n{name} {LINE}\n"
        found = subprocess.run(["ssh-keygen", "-F", name, "-f", str(known)], capture_output=True, text=True, check=True).stdout
        assert found.splitlines()[1] == f"{name} {LINE}"
        assert not isinstance(attempt(identity_file=str(key), known_hosts=str(known), **values), Refused)


def test_the_first_host_of_a_person_becomes_known_where_no_folder_was(attempt: Try, key: Path) -> None:
    known = key.parent / "new folder" / "known"
    command = str(getattr(attempt(identity_file=str(key), known_hosts=str(known)), "hint", "")).partition("the same: ")[2]
    subprocess.run(["sh", "-c", command], check=True)
    assert known.read_text() == f"h {LINE}\n"
    assert known.parent.stat().st_mode & 0o777 == 0o700
    assert attempt(identity_file=str(key), known_hosts=str(known)) is None


def test_the_hint_for_a_changed_key_replaces_it_by_the_one_that_was_seen(attempt: Try, key: Path) -> None:
    known, old = key.parent / "known", paramiko.ECDSAKey.generate()
    known.write_text(f"g {LINE}\nh {old.get_name()} {old.get_base64()}\n")
    refused = attempt(identity_file=str(key))
    assert "the host key has changed" in str(refused)
    command = str(refused.hint if refused else "").partition("the same: ")[2]
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    assert known.read_text() == f"g {LINE}\nh {LINE}\n"


def test_a_bastion_that_refuses_the_login_is_called_one_and_its_own_settings_are_named(attempt: Try, key: Path) -> None:
    strange = made(key.parent / "strange")
    (key.parent / ".ssh" / "config").write_text(
        f"Host gate\n  HostName h\n  User ops\n  IdentityFile {strange}\nHost x\n  ProxyJump gate\n"
    )
    here = f"of Host gate in {key.parent}/.ssh/config"
    for values, settings in (
        ({}, f"User {here}, IdentityFile {here}"),
        ({"proxy_jump": "me@gate"}, f"the user in `proxy_jump` of the host document, IdentityFile {here}"),
        ({"identity_file": str(strange)}, f"User {here}, `identity_file` of the host document, which bastions are offered, too"),
    ):
        refused = attempt(hostname="x", user="root", password="env:NOT_SET", **values)  # noqa: S106 - a reference
        user = "me" if "proxy_jump" in values else "ops"
        assert str(refused).startswith(f"{user}@h:22 (bastion on the way to root@x:22): the login was refused; offered: {strange}")
        assert str(refused.hint if refused else "").startswith(
            f"check {settings}, and authorized_keys on the bastion; try the same by hand: ssh"
        )


def test_a_bastion_is_not_said_to_want_the_password_that_it_is_never_given(attempt: Try, key: Path) -> None:
    refused = attempt(hostname="x", proxy_jump="h", identity_file=str(key.with_suffix(".none")), password="env:W", methods="hostbased")  # noqa: S106
    assert isinstance(refused, UsageError)  # the key is not there
    strange = made(key.parent / "strange")
    refused = attempt(hostname="x", proxy_jump="h", identity_file=str(strange), methods="password")
    assert "(bastion on the way to u@x:22): the login was refused: the server accepts password only" in str(refused)
    assert "`password`" not in str(refused.hint if refused else "`password`")


def test_a_wrong_password_is_looked_for_where_it_is_written(attempt: Try, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", RIGHT)
    assert attempt(password="env:WORD", methods="password") is None  # noqa: S106
    monkeypatch.setenv("WORD", "s3cret")
    for values, offered, check, methods in (
        ({}, "the password (env:WORD)", "`user`", "password,keyboard-interactive"),
        (
            {"identity_file": str(made(key.parent / "strange"))},
            f"{key.parent}/strange, the password (env:WORD)",
            "`user`, `identity_file`",
            "publickey,password,keyboard-interactive",
        ),
    ):
        refused = attempt(password="env:WORD", methods="publickey,password", **values)  # noqa: S106
        assert isinstance(refused, NotAdmitted)
        assert refused.message == f"u@h:22: the login was refused; offered: {offered}"
        assert str(refused.hint).startswith(f"check {check} and what `password: env:WORD` holds; try the same by hand: ")
        command = shlex.split(str(refused.hint).partition("by hand: ")[2])
        assert {f"preferredauthentications {methods}", "batchmode no"} <= options_of(command)
        assert "s3cret" not in f"{refused.message} {refused.hint}"


def test_what_the_document_names_and_cannot_be_used_ends_with_2_and_a_host_that_refuses_with_1(
    attempt: Try, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = key.parent / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "word", "-f", str(locked)], check=True)
    readable = made(key.parent / "readable")
    readable.chmod(0o644)
    monkeypatch.setenv("WRONG", "wrong")
    wrong: list[dict[str, str]] = [
        {"identity_file": "/none"},
        {"identity_file": str(readable)},
        {"identity_file": str(locked)},
        {"identity_file": str(locked), "passphrase": "env:NOT_SET"},
        {"identity_file": str(locked), "passphrase": "file:/none"},
        {"identity_file": str(locked), "passphrase": "env:WRONG"},
        {"password": "env:NOT_SET"},
        {"password": "file:/none"},
        {"config_file": "/none"},
        {"known_hosts": str(key.parent)},
        {"proxy_jump": "h:x"},
    ]
    for values in wrong:
        try:
            error = attempt(methods="password,publickey", **values)
        except AutotunerError as refused:  # by the document alone, before a connection is made
            error = refused
        assert error is not None, values
        assert (error.exit_code, bool(error.hint)) == (2, True), (values, error.message)
    for values in ({"identity_file": str(made(key.parent / "strange"))}, {"password": "env:WRONG"}):
        error = attempt(methods="password,publickey", **values)
        assert isinstance(error, NotAdmitted), values
        assert error.exit_code == 1


def test_a_peer_that_accepts_and_says_nothing_is_told_in_words_of_ours(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotuner.transports.ssh.login._HANDSHAKE_S", 0.3)
    (target,) = targets(SshDocument.model_validate({"type": "ssh", "hostname": "h", "user": "u"}))
    ours, theirs = socket.socketpair()
    with theirs, pytest.raises(Lost, match=r"^u@h:22: the connection was accepted, but nothing was said on it for 0.3 s$") as caught:
        log_in(ours, target)
    assert "listens on this port" in str(caught.value.hint)
    ours, theirs = socket.socketpair()
    theirs.close()
    with pytest.raises(Lost, match="the connection was closed by the other end"):
        log_in(ours, target)


def options_of(command: list[str]) -> set[str]:
    """What ssh itself understands of a command line."""
    words = [word for word in command[1:] if word not in {"-v", "true"}]
    done = subprocess.run(
        ["ssh", "-G", *words], capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"], "HOME": "/none"}
    )
    return set(done.stdout.splitlines())
