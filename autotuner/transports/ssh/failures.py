"""Every exception of paramiko and of sockets, as an error of this project with a sentence and the next command to try."""

from __future__ import annotations

import errno
import os
import shlex
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from paramiko.auth_strategy import AuthFailure
from paramiko.ber import BERException
from paramiko.buffered_pipe import PipeTimeout
from paramiko.hostkeys import InvalidHostKey
from paramiko.packet import NeedRekeyException
from paramiko.pkey import UnknownKeyType
from paramiko.sftp import SFTPError
from paramiko.ssh_exception import (
    AuthenticationException,
    BadAuthenticationType,
    BadHostKeyException,
    ChannelException,
    ConfigParseError,
    CouldNotCanonicalize,
    IncompatiblePeer,
    MessageOrderError,
    NoValidConnectionsError,
    PartialAuthentication,
    PasswordRequiredException,
    ProxyCommandFailure,
    SSHException,
    UnableToAuthenticate,
)

from autotuner.errors import AutotunerError, Refused, TransportError, UsageError
from autotuner.transports.ssh.known_hosts import fingerprint

LOGIN_OF_HOST = "`user` and `identity_file` of the host document, and authorized_keys on the host"
"""What decides whether a login is accepted, where nothing else is known of it."""


class Peer(str):
    """How people name a machine, with the command that does by hand what was tried with it, and where its login is written."""

    __slots__ = ("command", "login")

    command: tuple[str, ...]
    login: str

    def __new__(cls, name: str, command: tuple[str, ...] = (), login: str = LOGIN_OF_HOST) -> Self:
        """``name``: ``user@host:port``."""
        made = super().__new__(cls, name)
        made.command, made.login = command, login
        return made


class Lost(TransportError):
    """The host could not be reached, or the connection to it broke. A new connection may help."""


class NotAdmitted(TransportError):
    """The host answered, and refused the login."""


_CHANNEL_REASONS = {
    1: "the server forbids it",
    2: "the server could not connect there",
    3: "the server does not know this kind of channel",
    4: "the server is short of resources",
}
_REASONS = {
    errno.ECONNREFUSED: ("connection refused: nothing listens on this port", "check hostname and port, and that sshd runs"),
    errno.EHOSTUNREACH: ("no route to the host", "check that the machine is up and the network between is there"),
    errno.ENETUNREACH: ("the network is unreachable", "check the controller's own network and VPN"),
    errno.ETIMEDOUT: ("no answer: the connection timed out", "check that the machine is up and no firewall drops the connection"),
    errno.ECONNRESET: ("the connection was reset", "sshd may limit logins (MaxStartups) or be starting; try again"),
    errno.EPIPE: ("the connection was closed by the other end", "try again"),
}


def error_for(error: BaseException, who: str) -> AutotunerError:
    """The error of this project for ``error``, which came up while talking to ``who`` (``user@host:port``)."""
    for kind in type(error).__mro__:
        maker = MAPPED.get(kind)
        if maker is not None:
            return maker(error, who)
    raise error


@contextmanager
def mapped(who: str) -> Iterator[None]:
    """Raise this project's error for every foreign one inside."""
    try:
        yield
    except AutotunerError:
        raise
    except (*MAPPED,) as error:
        raise error_for(error, who) from error


def by_hand(who: str) -> str:
    """What a person types to see what ssh says about ``who``, with the keys, files and bastions that were used here."""
    command = who.command if isinstance(who, Peer) else ()
    return f"try the same by hand: {shlex.join(command)}" if command else "see what `ssh -v` says about it"


def login_of(who: str) -> str:
    """What a person corrects when ``who`` refuses the login."""
    return f"check {who.login if isinstance(who, Peer) else LOGIN_OF_HOST}"


def _of_bastion(who: str) -> bool:
    """Whether it is a machine that is given keys alone, never the document's password."""
    return isinstance(who, Peer) and who.login != LOGIN_OF_HOST


def silent(who: str, seconds: float) -> Lost:
    """The error for a peer that accepts the connection and never says that it is an SSH server."""
    return Lost(
        f"{who}: the connection was accepted, but nothing was said on it for {seconds:g} s",
        hint=f"check that sshd, and not something else, listens on this port, and that the machine is not overloaded; {by_hand(who)}",
    )


def _broken(error: BaseException, who: str) -> AutotunerError:
    return Lost(f"{who}: the SSH connection failed: {_text(error)}", hint=by_hand(who))


def _ended(_: BaseException, who: str) -> AutotunerError:
    return Lost(
        f"{who}: the connection was closed by the other end", hint=f"sshd may have been restarted or the host rebooted; {by_hand(who)}"
    )


def _operating_system(error: BaseException, who: str) -> AutotunerError:
    code = error.errno if isinstance(error, OSError) else None
    reason, hint = _REASONS.get(code or 0, (os.strerror(code) if code else _text(error), by_hand(who)))
    return Lost(f"{who}: {reason}", hint=hint)


def _name_unknown(error: BaseException, who: str) -> AutotunerError:
    return Lost(
        f"{who}: the host's name cannot be resolved ({_text(error)})",
        hint="check `hostname` of the host document, ~/.ssh/config and DNS (getent hosts NAME)",
    )


def _timed_out(_: BaseException, who: str) -> AutotunerError:
    reason, hint = _REASONS[errno.ETIMEDOUT]
    return Lost(f"{who}: {reason}", hint=hint)


def _no_address_answers(error: BaseException, who: str) -> AutotunerError:
    errors = getattr(error, "errors", {})
    first = next(iter(errors.values()), None)
    return error_for(first, who) if isinstance(first, OSError) else _broken(error, who)


def _login_refused(error: BaseException, who: str) -> AutotunerError:
    return NotAdmitted(
        f"{who}: the login was refused: {_text(error)}",
        hint=f"{login_of(who)}; {by_hand(who)}",
    )


def _other_login_wanted(error: BaseException, who: str) -> AutotunerError:
    kinds = ", ".join(getattr(error, "allowed_types", [])) or "something else"
    return NotAdmitted(
        f"{who}: the login was refused: the server accepts {kinds} only",
        hint="nothing is asked for interactively; "
        + (login_of(who) if _of_bastion(who) else "give `identity_file`, `agent: true` or `password` in the host document"),
    )


def _second_factor(error: BaseException, who: str) -> AutotunerError:
    kinds = ", ".join(getattr(error, "allowed_types", [])) or "something more"
    return NotAdmitted(
        f"{who}: the key was accepted, but the server wants {kinds} as well",
        hint="nothing is asked for interactively: exempt this user from the second factor"
        + ("" if _of_bastion(who) else ", or give `password`"),
    )


def _key_locked(_: BaseException, who: str) -> AutotunerError:
    return UsageError(
        f"{who}: the private key needs a passphrase",
        hint="give `passphrase: env:NAME` or `passphrase: file:/PATH`, or use an agent (`agent: true`)",
    )


def _channel_refused(error: BaseException, who: str) -> AutotunerError:
    code, text = getattr(error, "code", 0), getattr(error, "text", "")
    return Lost(
        f"{who}: a channel was refused: {_CHANNEL_REASONS.get(code, f'reason {code}')} ({text})",
        hint="check MaxSessions, AllowTcpForwarding and PermitOpen in sshd_config, and that the host behind a bastion is up",
    )


def _other_host_key(error: BaseException, who: str) -> AutotunerError:
    got, known = getattr(error, "key", None), getattr(error, "expected_key", None)
    shown = f" presented {fingerprint(got.asbytes())}, known is {fingerprint(known.asbytes())}" if got and known else ""
    return Refused(f"{who}: the host key has changed{shown}; nothing was done", hint="find out why before anything else")


def _tampered(error: BaseException, who: str) -> AutotunerError:
    return Refused(
        f"{who}: messages of the key exchange came out of order: {_text(error)}; nothing was done",
        hint="somebody between the controller and the host may be tampering with the connection",
    )


def _nothing_in_common(error: BaseException, who: str) -> AutotunerError:
    return TransportError(
        f"{who}: no common algorithm with the SSH server: {_text(error)}",
        hint="update the host's OpenSSH (7.2 or newer) or its KexAlgorithms, HostKeyAlgorithms and Ciphers",
    )


def _config_wrong(error: BaseException, who: str) -> AutotunerError:
    return UsageError(f"{who}: the ssh configuration cannot be used: {_text(error)}", hint="correct it, or write `config_file: none`")


def _key_unusable(_: BaseException, who: str) -> AutotunerError:
    return UsageError(
        f"{who}: the private key cannot be used",
        hint="wrong passphrase, damaged file, or a type other than ed25519, ECDSA and RSA; check it with ssh-keygen -y -f FILE",
    )


def _text(error: BaseException) -> str:
    if isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return " ".join(str(error).split()) or type(error).__name__


MAPPED: dict[type[BaseException], Callable[[BaseException, str], AutotunerError]] = {
    SSHException: _broken,
    AuthenticationException: _login_refused,
    PasswordRequiredException: _key_locked,
    BadAuthenticationType: _other_login_wanted,
    PartialAuthentication: _second_factor,
    UnableToAuthenticate: _login_refused,
    AuthFailure: _login_refused,
    ChannelException: _channel_refused,
    BadHostKeyException: _other_host_key,
    IncompatiblePeer: _nothing_in_common,
    ProxyCommandFailure: _broken,
    NoValidConnectionsError: _no_address_answers,
    CouldNotCanonicalize: _config_wrong,
    ConfigParseError: _config_wrong,
    MessageOrderError: _tampered,
    InvalidHostKey: _broken,
    UnknownKeyType: _key_unusable,
    BERException: _key_unusable,
    PipeTimeout: _timed_out,
    NeedRekeyException: _broken,
    SFTPError: _broken,
    socket.gaierror: _name_unknown,
    TimeoutError: _timed_out,
    EOFError: _ended,
    OSError: _operating_system,
}
"""What every exception becomes; a class that is not here is mapped as its nearest base."""
