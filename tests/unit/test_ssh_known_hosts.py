"""Files of known hosts count as they do for ssh."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import pytest

from autotuner.errors import AutotunerError
from autotuner.transports.ssh.known_hosts import fingerprint, host_key_name, known_keys

BLOB = b"\0\0\0\x0bssh-ed25519" + bytes(36)
KEY = f"ssh-ed25519 {base64.b64encode(BLOB).decode()}"


def hashed(name: str) -> str:
    salt = bytes(range(20))
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(hmac.new(salt, name.encode(), hashlib.sha1).digest()).decode()}"


@pytest.mark.parametrize(
    ("names", "name", "known"),
    [
        ("h", "h", True),
        ("H", "h", True),
        ("g,h", "h", True),
        ("h", "hh", False),
        ("*.example", "a.example", True),
        ("*.example,!a.example", "a.example", False),
        ("!a.example", "b.example", False),
        ("10.0.0.?", "10.0.0.7", True),
        ("[h]:2222", "[h]:2222", True),
        ("h", "[h]:2222", False),
        ("[*]:2222", "[h]:2222", True),
        (hashed("h"), "h", True),
        (hashed("h"), "g", False),
        (hashed("[h]:2222"), "[h]:2222", True),
        ("|1|broken", "h", False),
        ("|1|@@@|@@@", "h", False),
    ],
)
def test_names_match_as_ssh_matches_them(tmp_path: Path, names: str, name: str, known) -> None:
    file = tmp_path / "known"
    file.write_text(f"# comment\n\n{names} {KEY} somebody\n")
    found = known_keys([file], name)
    assert [key.blob for key in found] == ([BLOB] if known else [])
    assert all((key.kind, key.where, key.revoked) == ("ssh-ed25519", f"{file}:3", False) for key in found)


def test_several_files_and_keys_of_one_host_all_count(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(f"h {KEY}\nh ssh-rsa AAAA\n")
    (tmp_path / "b").write_text(f"h {KEY}\n")
    assert len(known_keys([tmp_path / "a", tmp_path / "none", tmp_path / "b"], "h")) == 3


def test_revoked_keys_are_marked_and_authorities_and_broken_lines_are_no_keys(tmp_path: Path) -> None:
    file = tmp_path / "known"
    file.write_text(f"@revoked h {KEY}\n@cert-authority h {KEY}\nh ssh-ed25519\nh ssh-ed25519 ???\n\xff\xfe\n", encoding="latin-1")
    assert [key.revoked for key in known_keys([file], "h")] == [True]


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AutotunerError, match="cannot read"):
        known_keys([tmp_path], "h")


def test_fingerprints_and_names_are_those_of_openssh() -> None:
    assert fingerprint(b"") == "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"
    assert (host_key_name("h", 22), host_key_name("h", 23), host_key_name("::1", 23)) == ("h", "[h]:23", "[::1]:23")
