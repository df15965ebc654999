"""Which host keys are known: files in OpenSSH's format, read without a library, so that every entry that ssh honours counts here.

Plain and hashed names, ``[host]:port``, patterns with ``*``, ``?`` and ``!``, several keys of one type, and ``@revoked``.
Certificate authorities are not supported: their lines are passed over, so that a host is rather refused than trusted.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from autotuner import disk

SSH_PORT = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class HostKey:
    """One key that is known for a host."""

    kind: str
    """Key type as OpenSSH writes it: ``ssh-ed25519``."""
    blob: bytes
    revoked: bool
    where: str
    """``FILE:LINE``."""


def host_key_name(host: str, port: int) -> str:
    """The name under which known_hosts files list a host."""
    return host if port == SSH_PORT else f"[{host}]:{port}"


def fingerprint(blob: bytes) -> str:
    """Fingerprint of a public key as ``ssh-keygen -l`` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def known_keys(files: Iterable[Path], name: str) -> list[HostKey]:
    """Every key that the files hold for ``name``. A file that is not there holds none. Raises ``UsageError`` for an unreadable one."""
    found: list[HostKey] = []
    for file in files:
        with disk.readable(file):
            try:
                text = file.read_text(encoding="utf-8", errors="replace")
            except FileNotFoundError:
                continue
        for number, line in enumerate(text.splitlines(), 1):
            key = _matching(line, name, f"{file}:{number}")
            if key is not None:
                found.append(key)
    return found


def appending(file: Path, name: str, kind: str, blob: bytes) -> str:
    """The shell command that makes a key known: it adds exactly this key to ``file`` under ``name``, on a line of its own."""
    line = f"{name} {kind} {base64.b64encode(blob).decode()}"
    start = "" if _ends_with_a_line(file) else "\\n"
    folder = "" if file.parent.is_dir() else f"mkdir -p -m 700 {shlex.quote(str(file.parent))} && "
    return f"{folder}printf '{start}%s\\n' {shlex.quote(line)} >> {shlex.quote(str(file))}"


def _ends_with_a_line(file: Path) -> bool:
    with disk.readable(file):
        try:
            with file.open("rb") as known:
                known.seek(0, os.SEEK_END)
                known.seek(max(0, known.tell() - 1))
                return known.read() in {b"", b"\n"}
        except FileNotFoundError:
            return True


def _matching(line: str, name: str, where: str) -> HostKey | None:
    fields = line.split()
    marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
    if len(fields) < 3 or fields[0].startswith("#") or marker not in {"", "@revoked"}:
        return None
    names, kind, coded = fields[:3]
    if not _names_match(names.split(","), name.lower()):
        return None
    try:
        blob = base64.b64decode(coded, validate=True)
    except binascii.Error:
        return None
    return HostKey(kind=kind, blob=blob, revoked=bool(marker), where=where)


def _names_match(patterns: list[str], name: str) -> bool:
    matched = False
    for pattern in patterns:
        negated = pattern.startswith("!")
        if _name_matches(pattern[1:] if negated else pattern, name):
            if negated:
                return False
            matched = True
    return matched


def _name_matches(pattern: str, name: str) -> bool:
    if pattern.startswith("|1|"):
        return _hash_matches(pattern, name)
    # Square brackets stand for themselves here: only * and ? are patterns.
    return fnmatch.fnmatchcase(name, pattern.lower().replace("[", "[[]"))


def _hash_matches(pattern: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in pattern.split("|")[2:4])
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)
