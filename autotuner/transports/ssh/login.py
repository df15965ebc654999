"""Logging in: the host's key is checked before anything is said, then keys, agent and password are offered in that order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import paramiko
from paramiko.ber import BERException
from paramiko.pkey import UnknownKeyType
from paramiko.ssh_exception import AuthenticationException, BadAuthenticationType, PartialAuthentication, SSHException

from autotuner import disk
from autotuner.errors import AutotunerError, Refused, UsageError
from autotuner.transports.ssh.failures import NotAdmitted, by_hand, mapped
from autotuner.transports.ssh.known_hosts import HostKey, fingerprint, known_keys
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
            _negotiate(session)
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


def _negotiate(session: paramiko.Transport) -> None:
    done = threading.Event()
    session.start_client(event=done)
    finished = done.wait(2 * _HANDSHAKE_S)
    if not session.is_active():
        raise session.get_exception() or SSHException("the negotiation failed")
    if not finished:
        raise TimeoutError


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
    file, name = target.known_hosts[0], _file_kind(kind)
    compare = f"on the host's own console (ssh-keygen -lf /etc/ssh/ssh_host_{name}_key.pub)"
    add = f"ssh-keyscan -t {name} -p {target.port} {target.host} | tee -a {file}"
    if not valid:
        raise Refused(
            f"{target.who}: unknown host key: {target.key_name} presents {shown}, which no file of known hosts lists",
            hint=f"compare it {compare}; only if it is the same: {add}",
        )
    expected = "; ".join(f"{entry.kind} {fingerprint(entry.blob)} ({entry.where})" for entry in valid)
    raise Refused(
        f"{target.who}: the host key has changed: {target.key_name} presents {shown}, known is {expected}; nothing was done",
        hint=(
            f"somebody may be in between, or the host was installed anew. Compare it {compare}; "
            f"only if it is the same: ssh-keygen -R '{target.key_name}' -f {file}; {add}"
        ),
    )


def _file_kind(kind: str) -> str:
    return "ed25519" if "ed25519" in kind else "ecdsa" if "ecdsa" in kind else "rsa"


def _authenticate(session: paramiko.Transport, target: Target) -> None:
    refused: AuthenticationException | None = None
    offered: list[str] = []
    for name, key in _keys(target):
        offered.append(name)
        refused = _offer(session, target, key)
        if refused is None:
            return
        if isinstance(refused, BadAuthenticationType | PartialAuthentication):
            break
    if target.password is not None:
        offered.append("the password")
        further = session.auth_password(target.user, secret(target.password, f"password of {target.who}"))
        if not further:
            return
        refused = PartialAuthentication(further)
    if isinstance(refused, BadAuthenticationType | PartialAuthentication):
        raise refused
    raise NotAdmitted(
        f"{target.who}: the login was refused; offered: {', '.join(offered) or 'nothing, because no key was found'}",
        hint=f"check `user` and `identity_file` of the host document, and authorized_keys on the host; {by_hand(target.who)}",
    )


def _offer(session: paramiko.Transport, target: Target, key: paramiko.PKey) -> AuthenticationException | None:
    """``None`` when the key was accepted, else why not."""
    try:
        further = session.auth_publickey(target.user, key)
    except AuthenticationException as error:
        if not session.is_active():
            raise EOFError from error
        return error
    return PartialAuthentication(further) if further else None


def _keys(target: Target) -> Iterator[tuple[str, paramiko.PKey]]:
    for file in target.identity_files:
        key = _key(file, target)
        if key is not None:
            yield str(file), key
    if target.agent:
        agent = paramiko.Agent()
        try:
            for key in agent.get_keys():
                yield f"agent key {key.comment or key.get_name()}", key
        finally:
            agent.close()


def _key(file: Path, target: Target) -> paramiko.PKey | None:
    """The private key of the file; ``None`` for a default key that is not there or not usable without being asked for."""
    try:
        with disk.refusals("read", file, then="`identity_file` names the private key"):
            file.read_bytes()
        return _unlocked(file, target)
    except AutotunerError:
        if target.only_these:
            raise
        return None


def _unlocked(file: Path, target: Target) -> paramiko.PKey:
    damaged = f"{file} is not a private key that can be used"
    try:
        return paramiko.PKey.from_path(file)
    except TypeError:
        pass  # This is how the library says that the key is encrypted.
    except (UnknownKeyType, BERException, ValueError, SSHException) as error:
        raise UsageError(
            f"{damaged}: {error}", hint=f"it must be an ed25519, ECDSA or RSA key; check it with ssh-keygen -y -f {file}"
        ) from error
    if target.passphrase is None:
        raise UsageError(
            f"{file} is protected by a passphrase",
            hint="give `passphrase: env:NAME` or `passphrase: file:/PATH`, or load it into an agent and write `agent: true`",
        )
    passphrase = secret(target.passphrase, f"passphrase of {file}")
    try:
        return paramiko.PKey.from_path(file, passphrase.encode())
    except (UnknownKeyType, BERException, TypeError, ValueError, SSHException) as error:
        raise UsageError(
            f"{file}: wrong passphrase, or a damaged key", hint=f"check the passphrase with ssh-keygen -y -f {file}"
        ) from error
