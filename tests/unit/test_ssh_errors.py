"""Every exception that paramiko or a socket can raise becomes an error of ours that says what to do."""

from __future__ import annotations

import errno
import importlib
import inspect
import pkgutil
import socket
import subprocess
import sys
from pathlib import Path

import paramiko
import pytest
from paramiko import ssh_exception

from autotuner.errors import AutotunerError, Refused, TransportError, UsageError
from autotuner.transports.ssh.failures import MAPPED, Lost, NotAdmitted, Peer, by_hand, error_for, mapped

WHO = "root@h:22"
NOT_ON_POSIX = {"paramiko._winapi", "paramiko.win_openssh", "paramiko.win_pageant"}


def every_exception() -> list[type[BaseException]]:
    found = set()
    for module in pkgutil.walk_packages(paramiko.__path__, "paramiko."):
        if module.name in NOT_ON_POSIX:
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(value) and issubclass(value, BaseException) and value.__module__.startswith("paramiko"):
                found.add(value)
    return sorted(found, key=lambda kind: kind.__name__)


ARGUMENTS: dict[str, tuple[object, ...]] = {
    "BadAuthenticationType": ("no", ["publickey"]),
    "PartialAuthentication": (["keyboard-interactive"],),
    "ChannelException": (2, "Connect failed"),
    "BadHostKeyException": ("h", paramiko.RSAKey.generate(2048), paramiko.RSAKey.generate(2048)),
    "ProxyCommandFailure": ("nc", "exit 1"),
    "NoValidConnectionsError": ({("10.0.0.1", 22): OSError(errno.ECONNREFUSED, "refused")},),
    "InvalidHostKey": ("line", ValueError("x")),
    "AuthFailure": ([],),
    "UnknownKeyType": ("ssh-x", b"x"),
}


@pytest.mark.parametrize("kind", every_exception(), ids=lambda kind: kind.__name__)
def test_every_exception_class_of_the_library_is_mapped_by_name_with_a_message_and_a_hint(kind) -> None:
    assert kind in MAPPED, f"{kind.__module__}.{kind.__name__} is new: decide what people must do about it"
    made = error_for(kind(*ARGUMENTS.get(kind.__name__, ())), WHO)
    assert made.message.startswith("root@h:22: ")
    assert len(made.message) > len("root@h:22: ") + 10
    assert made.hint


def test_the_walk_sees_the_classes_that_matter() -> None:
    names = {kind.__name__ for kind in every_exception()}
    public = {name for name, value in vars(ssh_exception).items() if inspect.isclass(value) and value.__module__ == ssh_exception.__name__}
    assert public <= names
    assert {"AuthFailure", "UnknownKeyType", "PipeTimeout", "BERException"} <= names


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (socket.gaierror(-2, "Name or service not known"), Lost, "cannot be resolved"),
        (TimeoutError("timed out"), Lost, "no answer"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), Lost, "nothing listens"),
        (OSError(errno.EHOSTUNREACH, "x"), Lost, "no route"),
        (OSError(errno.ENETUNREACH, "x"), Lost, "unreachable"),
        (ConnectionResetError(errno.ECONNRESET, "x"), Lost, "reset"),
        (OSError(errno.ENOBUFS, "x"), Lost, "No buffer space available"),
        (EOFError(), Lost, "closed by the other end"),
        (ssh_exception.AuthenticationException("Authentication failed."), NotAdmitted, "login was refused"),
        (ssh_exception.BadAuthenticationType("x", ["publickey"]), NotAdmitted, "accepts publickey only"),
        (ssh_exception.PartialAuthentication(["keyboard-interactive"]), NotAdmitted, "wants keyboard-interactive as well"),
        (ssh_exception.PasswordRequiredException("x"), UsageError, "passphrase"),
        (ssh_exception.MessageOrderError("x"), Refused, "nothing was done"),
        (ssh_exception.ConfigParseError("Unparsable line x"), UsageError, "Unparsable line x"),
        (ssh_exception.NoValidConnectionsError({("10.0.0.1", 22): OSError(errno.ECONNREFUSED, "x")}), Lost, "nothing listens"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_errors_are_named_by_what_to_do(error, kind, says) -> None:
    with pytest.raises(kind, match=says), mapped(WHO):
        raise error


def test_what_is_lost_or_not_admitted_is_a_matter_of_the_wire() -> None:
    assert issubclass(Lost, TransportError)
    assert issubclass(NotAdmitted, TransportError)


def test_errors_of_ours_and_of_programmers_pass_through() -> None:
    with pytest.raises(AutotunerError, match="ours"), mapped(WHO):
        raise AutotunerError("ours")
    with pytest.raises(ZeroDivisionError), mapped(WHO):
        _ = 1 / 0


def test_the_command_to_try_by_hand_is_quoted_and_comes_with_every_error() -> None:
    peer = Peer(WHO, ("ssh", "-i", "it's; id", WHO))
    assert by_hand(peer) == """try the same by hand: ssh -i 'it'"'"'s; id' root@h:22"""
    with pytest.raises(Lost, match="root@h:22: ") as caught, mapped(peer):
        raise OSError(errno.ENOBUFS, "x")
    assert caught.value.hint == by_hand(peer)


def test_what_the_library_logs_stays_silent() -> None:
    """In a process of its own: the levels of loggers belong to the whole of one."""
    code = "import logging, autotuner.transports.ssh.connection; logging.getLogger('paramiko.transport').error('noise')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_local_hosts_do_without_the_library() -> None:
    import subprocess
    import sys

    code = "import sys; import autotuner.transports.registry; sys.exit('paramiko' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0
