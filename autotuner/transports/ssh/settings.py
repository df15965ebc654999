"""What a connection needs: the host document first, then ``~/.ssh/config``, then the defaults of ssh. No network is touched here."""

from __future__ import annotations

import getpass
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paramiko.config import SSHConfig

from autotuner import disk
from autotuner.errors import UsageError
from autotuner.model.host import SshTransport as SshDocument
from autotuner.model.host import bastions, is_port, read_bastion
from autotuner.transports.ssh.failures import LOGIN_OF_HOST, Peer, mapped
from autotuner.transports.ssh.includes import expanded
from autotuner.transports.ssh.known_hosts import SSH_PORT, host_key_name

_DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_DEFAULT_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts")
_MOST_HOPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One machine to log in to: the host itself or a bastion before it."""

    host: str
    """Name or address that is connected to."""
    port: int
    user: str
    key_name: str
    """The name under which its host key is known."""
    known_hosts: tuple[Path, ...]
    identity_files: tuple[Path, ...]
    only_these: bool
    """Whether the identity files were asked for, so that one which cannot be used is an error."""
    agent: bool
    passphrase: str | None
    """Reference (``env:NAME`` or ``file:/PATH``) of the passphrase of the identity files."""
    password: str | None
    """Reference of the password; only the host itself is ever given it."""

    login: str = LOGIN_OF_HOST
    """Where a person finds what its login depends on."""
    behind: tuple[Target, ...] = ()
    """The bastions on the way to it, the nearest to it last."""
    way_to: str = ""
    """The host, where this is a bastion before it."""

    @property
    def name(self) -> str:
        """``user@host:port``."""
        return f"{self.user}@{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def who(self) -> Peer:
        """How people name it; a bastion is called one, since the person who reads an error thinks of the host."""
        role = f" (bastion on the way to {self.way_to})" if self.way_to else ""
        return Peer(f"{self.name}{role}", self.by_hand(), self.login)

    def by_hand(self) -> tuple[str, ...]:
        """The command line with which ssh logs in to it in the same way, and says what it does."""
        return ("ssh", "-v", *self._options(), f"{self.user}@{self.host}", "true")

    def _options(self) -> tuple[str, ...]:
        options = [] if self.password else ["BatchMode=yes"]
        files = [file for file in self.identity_files if self.only_these or os.path.exists(file)]  # noqa: PTH110 - a folder that is closed to us is no error here
        options += [] if self.agent else ["IdentitiesOnly=yes", "IdentityAgent=none"]
        options += [] if files else ["IdentityFile=none"]
        if self.password:
            methods = [*(["publickey"] if files or self.agent else []), "password", "keyboard-interactive"]
            options.append(f"PreferredAuthentications={','.join(methods)}")
        if self.known_hosts != _expanded(_DEFAULT_KNOWN_HOSTS):
            listed = " ".join(f'"{file}"' if " " in str(file) else str(file) for file in self.known_hosts)
            options += [f"UserKnownHostsFile={listed}", "GlobalKnownHostsFile=none"]
        if self.key_name != host_key_name(self.host, self.port):
            options.append(f"HostKeyAlias={self.key_name}")
        if self.behind:
            bastion = replace(self.behind[-1], behind=self.behind[:-1])
            words = ["ssh", *bastion._options(), f"{bastion.user}@{bastion.host}"]  # noqa: SLF001 - another one of the same class
            way = shlex.join([word.replace("%", "%%") for word in words])
            options.append(f"ProxyCommand={way} -W '[%h]:%p'")
        keys = [word for file in files for word in ("-i", str(file))]
        return ("-F", "none", *keys, *(word for option in options for word in ("-o", option)), "-p", str(self.port))


def targets(document: SshDocument) -> tuple[Target, ...]:
    """The machines on the way, the host itself last. Raises ``UsageError`` for a configuration that cannot be used."""
    config = _Config(document)
    options = config.options(document.hostname)
    last = config.target(document.hostname, options, user=document.user, port=document.port)
    last = replace(last, password=document.password, login=LOGIN_OF_HOST)
    if document.proxy_jump is None and options.get("proxycommand"):
        raise UsageError(
            f"{document.hostname}: ProxyCommand of {config.file} is not supported",
            hint="name the bastion with `proxy_jump: [user@]host[:port]` in the host document",
        )
    if document.proxy_jump is not None:
        passed = config.bastions(document.proxy_jump, (), "`proxy_jump` of the host document")
    else:
        passed = config.bastions(options.get("proxyjump", "none"), (), f"ProxyJump in {config.file}")
    way = (*(replace(bastion, way_to=last.name) for bastion in passed), last)
    return tuple(replace(target, behind=way[:number]) for number, target in enumerate(way))


class _Config:
    def __init__(self, document: SshDocument) -> None:
        self._document = document
        name = document.config_file or "~/.ssh/config"
        self.file = Path(name).expanduser()
        self._parsed = SSHConfig()
        if name == "none":
            return
        if document.config_file is None and not self.file.exists():
            return
        with mapped(str(self.file)), disk.readable(self.file):
            self._parsed = SSHConfig.from_text(expanded(self.file))

    def options(self, name: str) -> Mapping[str, Any]:
        with mapped(name):
            try:
                return dict(self._parsed.lookup(name))
            except (ImportError, KeyError, ValueError) as error:
                raise UsageError(
                    f"{self.file}: cannot be used for {name}: {error}", hint="write `config_file: none`, or correct the file"
                ) from error

    def target(self, name: str, options: Mapping[str, Any], *, user: str | None, port: int | None) -> Target:
        document = self._document
        host = str(options.get("hostname", name))
        number = port or _port(str(options.get("port", SSH_PORT)), f"{self.file}: Port of {name}")
        identity = _identity_files(document, options)
        known = (document.known_hosts,) if document.known_hosts else tuple(str(options.get("userknownhostsfile", "")).split())
        return Target(
            host=host,
            port=number,
            user=user or options.get("user") or getpass.getuser(),
            key_name=str(options.get("hostkeyalias", host_key_name(host, number))),
            known_hosts=_expanded(known or _DEFAULT_KNOWN_HOSTS),
            identity_files=tuple(Path(file).expanduser() for file in identity or _default_keys(document)),
            only_these=document.identity_file is not None,
            agent=document.agent,
            passphrase=document.passphrase,
            password=None,
        )

    def bastions(self, jumps: str, seen: tuple[str, ...], where: str) -> tuple[Target, ...]:
        """The bastions of a ProxyJump value that stands at ``where``. The first one may be behind others by the configuration file."""
        hops = bastions(jumps)
        if not hops:
            return ()
        found = []
        for hop in hops:
            user, name, port = _hop(hop)
            options = self.options(name)
            target = self.target(name, options, user=user, port=port)
            found.append(replace(target, login=self._login_of_bastion(name, where if user else "")))
        first = _hop(hops[0])[1]
        if first in seen or len(seen) + len(hops) > _MOST_HOPS:
            raise UsageError(
                f"{self._document.hostname}: its bastions lead back to {first}, or are more than {_MOST_HOPS}",
                hint=f"correct ProxyJump in {self.file} or `proxy_jump` in the host document",
            )
        before = str(self.options(first).get("proxyjump", "none"))
        return (*self.bastions(before, (*seen, first), f"ProxyJump in {self.file}"), *found)

    def _login_of_bastion(self, name: str, user_at: str) -> str:
        """Where its login is written: the user before the @ at ``user_at``, if any, and the key."""
        document, here = self._document, f"of Host {name} in {self.file}"
        read = document.config_file != "none"
        user = f"the user in {user_at}" if user_at else f"User {here}" if read else "the user (write user@ in `proxy_jump`)"
        shared = document.identity_file is not None or not read
        key = "`identity_file` of the host document, which bastions are offered, too" if shared else f"IdentityFile {here}"
        return f"{user}, {key}, and authorized_keys on the bastion"


def _expanded(files: Iterable[str]) -> tuple[Path, ...]:
    return tuple(Path(os.path.expanduser(file)) for file in files)  # noqa: PTH111 - as ssh writes it


def _identity_files(document: SshDocument, options: Mapping[str, Any]) -> list[str]:
    if document.identity_file is not None:
        return [document.identity_file]
    return [file for file in options.get("identityfile", []) if file != "none"]


def _default_keys(document: SshDocument) -> tuple[str, ...]:
    return () if document.agent or document.password else _DEFAULT_KEYS


def _hop(text: str) -> tuple[str | None, str, int | None]:
    user, host, port = read_bastion(text)
    if not host:
        raise UsageError(f"proxy_jump {text!r} names no host", hint="write [user@]host[:port], several with commas")
    return user or None, host, _port(port, f"proxy_jump {text!r}") if port else None


def _port(text: str, what: str) -> int:
    if is_port(text):
        return int(text)
    raise UsageError(f"{what}: {text!r} is not a port", hint="write a number from 1 to 65535")


def secret(reference: str, what: str) -> str:
    """The value behind ``env:NAME`` or ``file:/PATH`` on the controller. Raises ``UsageError`` when it is not there."""
    kind, _, name = reference.partition(":")
    if kind == "env":
        value = os.environ.get(name)
        if not value:
            raise UsageError(f"{what}: environment variable {name} is not set", hint=f"export {name}=… before starting autotuner")
        return value
    with disk.readable(name, then=f"it holds the {what}"):
        return Path(name).read_text(encoding="utf-8").rstrip("\r\n")
