"""Logging in: the host's key is checked before anything is said, then keys, agent and password are offered in that order."""

from __future__ import annotations

import functools
import os
import shlex
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
from paramiko.ber import BERException
from paramiko.pkey import UnknownKeyType
from paramiko.ssh_exception import AuthenticationException, BadAuthenticationType, PartialAuthentication, SSHException

from autotuner import disk
from autotuner.errors import AutotunerError, Refused, UsageError
from autotuner.transports.ssh import agent
from autotuner.transports.ssh.failures import NotAdmitted, by_hand, login_of, mapped, silent
from autotuner.transports.ssh.known_hosts import HostKey, appending, fingerprint, known_keys
from autotuner.transports.ssh.settings import Target, secret

_HANDSHAKE_S = 20.0
_AUTH_S = 30.0
CHANNEL_S = 15.0
_RSA_SIGNATURES = ("rsa-sha2-512", "rsa-sha2-256")


def log_in(sock: object, target: Target) -> paramiko.Transport:
    """An authenticated SSH session with ``target`` over an open socket or channel.

    Raises ``Refused`` for a host key that is unknown, revoked or another one than before, ``NotAdmitted`` for a refused login,
    ``UsageError`` for a key or secret that cannot be used, and ``Lost``.
    """
    with mapped(target.who):
        session = paramiko.Transport(sock)
        try:
            session.banner_timeout = session.handshake_timeout = _HANDSHAKE_S
            session.auth_timeout = _AUTH_S
            session.channel_timeout = CHANNEL_S
            known = known_keys(target.known_hosts, target.key_name)
            _prefer(session, known)
            _negotiate(session, target)
            _check_host_key(session.get_remote_server_key(), known, target)
            _authenticate(session, target)
        except BaseException:
            session.close()
            raise
    return session


def _prefer(session: paramiko.Transport, known: list[HostKey]) -> None:
    """Ask for the types of key that are known, so that a server with several presents one that can be checked."""
    kinds = [key.kind for key in known if not key.revoked]
    wanted = [name for kind in kinds for name in (_RSA_SIGNATURES if kind == "ssh-rsa" else (kind,))]
    options = session.get_security_options()
    available = [name for name in options.key_types if not name.endswith("-cert-v01@openssh.com")]
    first = [name for name in available if name in wanted]
    options.key_types = [*first, *(name for name in available if name not in first)]


def _negotiate(session: paramiko.Transport, target: Target) -> None:
    done = threading.Event()
    session.start_client(event=done)
    finished = done.wait(2 * _HANDSHAKE_S)
    if not session.is_active():
        raise _why_not(session.get_exception() or SSHException("the negotiation failed"), target)
    if not finished:
        raise TimeoutError


def _why_not(error: BaseException, target: Target) -> BaseException:
    """What kept the two sides from negotiating. Where the other side's first line never came, the library says only that it did not."""
    before = error.__context__ if type(error) is SSHException and "protocol banner" in str(error) else None
    if isinstance(before, TimeoutError):
        return silent(target.who, _HANDSHAKE_S)
    return before if isinstance(before, OSError | EOFError) else error


def _check_host_key(key: paramiko.PKey, known: list[HostKey], target: Target) -> None:
    blob, kind = key.asbytes(), key.get_name()
    shown = f"{kind} {fingerprint(blob)}"
    same = [entry for entry in known if entry.blob == blob]
    revoked = [entry for entry in same if entry.revoked]
    if revoked:
        raise Refused(
            f"{target.who}: the host presented a revoked key: {shown} ({revoked[0].where}); nothing was done", hint="do not connect to it"
        )
    if same:
        return
    valid = [entry for entry in known if not entry.revoked]
    file = target.known_hosts[0]
    compare = f"on that machine's own console (ssh-keygen -lf /etc/ssh/ssh_host_{_file_kind(kind)}_key.pub)"
    add = appending(file, target.key_name, kind, blob)
    if not valid:
        raise Refused(
            f"{target.who}: unknown host key: {target.key_name} presents {shown}, which no file of known hosts lists",
            hint=f"compare the fingerprint {compare}; only if it is the same: {add}",
        )
    expected = "; ".join(f"{entry.kind} {fingerprint(entry.blob)} ({entry.where})" for entry in valid)
    raise Refused(
        f"{target.who}: the host key has changed: {target.key_name} presents {shown}, known is {expected}; nothing was done",
        hint=(
            f"somebody may be in between, or the host was installed anew. Compare the fingerprint {compare}; "
            f"only if it is the same: ssh-keygen -R {shlex.quote(target.key_name)} -f {shlex.quote(str(file))}; {add}"
        ),
    )


def _file_kind(kind: str) -> str:
    return "ed25519" if "ed25519" in kind else "ecdsa" if "ecdsa" in kind else "rsa"


def _authenticate(session: paramiko.Transport, target: Target) -> None:
    refused: AuthenticationException | None = None
    offered: list[str] = []
    passed_over: list[AutotunerError] = []
    for name, key in _keys(target, passed_over):
        offered.append(name)
        refused = _asked(session, functools.partial(session.auth_publickey, target.user, key))
        if refused is None:
            return
        if isinstance(refused, BadAuthenticationType | PartialAuthentication):
            break
    if target.password is not None:
        offered.append(f"the password ({target.password})")
        word = secret(target.password, f"password of {target.who}")
        refused = _asked(session, lambda: session.auth_password(target.user, word))
        if refused is None:
            return
    if isinstance(refused, BadAuthenticationType | PartialAuthentication):
        raise refused
    raise _not_admitted(target, offered, passed_over)


def _not_admitted(target: Target, offered: list[str], passed_over: list[AutotunerError]) -> NotAdmitted:
    told = [f"offered: {', '.join(offered) or 'nothing'}"]
    told += [f"not offered: {error.message}" for error in passed_over]
    told += [agent.find().state] if target.agent else [] if offered or passed_over else ["no key was found"]
    hints = [error.hint for error in passed_over if error.hint]
    check = login_of(target.who)
    if target.password is not None:
        named = "`user`, `identity_file`" if len(offered) > 1 else "`user`"
        check = f"check {named} and what `password: {target.password}` holds"
    hints.append(f"{check}; {by_hand(target.who)}")
    return NotAdmitted(f"{target.who}: the login was refused; {'; '.join(told)}", hint="; ".join(hints))


def _asked(session: paramiko.Transport, ask: Callable[[], list[str]]) -> AuthenticationException | None:
    """``None`` when the server lets us in, else why not."""
    try:
        further = ask()
    except AuthenticationException as error:
        if not session.is_active():
            raise EOFError from error
        return error
    return PartialAuthentication(further) if further else None


def _keys(target: Target, passed_over: list[AutotunerError]) -> Iterator[tuple[str, paramiko.PKey]]:
    """The keys to offer, named; default keys that are there and cannot be used are noted in ``passed_over``."""
    for file in target.identity_files:
        try:
            key = _key(file, target)
        except AutotunerError as error:
            if target.only_these:
                raise
            if os.path.exists(file):  # noqa: PTH110 - a folder that is closed to us is no error here
                passed_over.append(error)
            continue
        yield str(file), key
    if target.agent and agent.find().keys:
        running = paramiko.Agent()
        try:
            for key in running.get_keys():
                yield f"agent key {key.comment or key.get_name()}", key
        finally:
            running.close()


def _key(file: Path, target: Target) -> paramiko.PKey:
    with disk.readable(file, then="`identity_file` names the private key"):
        file.read_bytes()
        found = file.stat()
    if found.st_uid == os.getuid() and found.st_mode & 0o077:  # as ssh does: another owner's file is that owner's matter
        raise UsageError(
            f"{file} can be read by others (mode {stat.S_IMODE(found.st_mode):04o}), so it is no secret and is not used",
            hint=f"chmod 600 {shlex.quote(str(file))}",
        )
    return _unlocked(file, target)


def _unlocked(file: Path, target: Target) -> paramiko.PKey:
    check = f"ssh-keygen -y -f {shlex.quote(str(file))}"
    try:
        return paramiko.PKey.from_path(file)
    except TypeError:
        pass  # This is how the library says that the key is encrypted.
    except (UnknownKeyType, BERException, ValueError, SSHException) as error:
        hint = f"it must be a private ed25519, ECDSA or RSA key; check it with {check}"
        raise UsageError(f"{file} is not a private key that can be used", hint=hint) from error
    if target.passphrase is None:
        raise UsageError(
            f"{file} is protected by a passphrase",
            hint="give `passphrase: env:NAME` or `passphrase: file:/PATH`, or load it into an agent and write `agent: true`",
        )
    passphrase = secret(target.passphrase, f"passphrase of {file}")
    try:
        return paramiko.PKey.from_path(file, passphrase.encode())
    except (UnknownKeyType, BERException, TypeError, ValueError, SSHException) as error:
        raise UsageError(f"{file}: wrong passphrase, or a damaged key", hint=f"check the passphrase with {check}") from error
