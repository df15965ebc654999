"""What a connection needs: the host document, then ssh's configuration, then ssh's defaults."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from autotuner.errors import AutotunerError, UsageError
from autotuner.model.host import SshTransport as SshDocument
from autotuner.transports.registry import transport_for
from autotuner.transports.ssh.settings import secret, targets
from autotuner.transports.ssh.transport import SshTransport
from tests.builders import host


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    return tmp_path


def document(hostname: str = "gpu", **more: object) -> SshDocument:
    return SshDocument.model_validate({"type": "ssh", "hostname": hostname, **more})


def configure(home: Path, text: str, name: str = "config") -> Path:
    file = home / ".ssh" / name
    file.write_text(text)
    return file


REFERENCE = "env:P"
CONFIG = """
Host gpu
    HostName 10.0.0.7
    User tuner
    Port 2222
    IdentityFile ~/.ssh/gpu_key
    UserKnownHostsFile ~/.ssh/gpu_hosts /etc/more
    ProxyJump ops@bastion:2200
Host bastion
    HostName gate.example
    IdentityFile ~/.ssh/gate_key
Host far
    ProxyJump middle
Host middle
    ProxyJump bastion
"""


def test_an_alias_takes_everything_from_the_configuration(home: Path) -> None:
    configure(home, CONFIG)
    bastion, last = targets(document())
    assert (last.who, last.key_name) == ("tuner@10.0.0.7:2222", "[10.0.0.7]:2222")
    assert last.identity_files == (home / ".ssh/gpu_key",)
    assert last.known_hosts == (home / ".ssh/gpu_hosts", Path("/etc/more"))
    assert (bastion.name, bastion.key_name) == ("ops@gate.example:2200", "[gate.example]:2200")
    assert bastion.identity_files == (home / ".ssh/gate_key",)


def test_values_of_the_document_win(home: Path) -> None:
    configure(home, CONFIG)
    given = document(user="me", port=22, identity_file="/k", known_hosts="/kh", proxy_jump="none", agent=True, password=REFERENCE)
    (last,) = targets(given)
    assert (last.who, last.key_name) == ("me@10.0.0.7:22", "10.0.0.7")
    assert (last.identity_files, last.known_hosts, last.only_these) == ((Path("/k"),), (Path("/kh"),), True)
    assert (last.agent, last.password) == (True, REFERENCE)


def test_without_a_configuration_the_defaults_of_ssh_hold(home: Path) -> None:
    (last,) = targets(document("h"))
    assert last.who == f"{getpass.getuser()}@h:22"
    assert home / ".ssh/id_ed25519" in last.identity_files
    assert last.known_hosts[0] == home / ".ssh/known_hosts"
    assert not last.only_these
    assert not last.agent


def test_no_configuration_is_read_when_none_is_asked_for(home: Path) -> None:
    configure(home, "Host h\n  User other\n")
    (last,) = targets(document("h", user="me", config_file="none"))
    assert last.user == "me"
    assert targets(document("h"))[0].user == "other"


def test_the_bastions_of_a_bastion_come_first(home: Path) -> None:
    configure(home, CONFIG)
    assert [target.host for target in targets(document("far"))] == ["gate.example", "middle", "far"]


def test_several_bastions_and_ipv6(home: Path) -> None:
    chain = targets(document("h", user="u", proxy_jump="a@[::1]:2222, ssh://b"))
    assert [target.name for target in chain] == ["a@[::1]:2222", f"{getpass.getuser()}@b:22", "u@h:22"]
    assert [str(target.who).partition(" ")[2] for target in chain] == ["(bastion on the way to u@h:22)"] * 2 + [""]


def test_a_password_is_for_the_host_alone(home: Path) -> None:
    bastion, last = targets(document("h", proxy_jump="b", password=REFERENCE))
    assert (bastion.password, last.password) == (None, REFERENCE)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Host gpu\n  ProxyCommand nc %h %p\n", "ProxyCommand"),
        ("Host gpu\n  Port many\n", "'many' is not a port"),
        ("Host gpu\n  ProxyJump x\nHost x\n  ProxyJump gpu2\nHost gpu2\n  ProxyJump x\n", "lead back"),
        ("Host gpu\n  Include other\n", "Include within a block"),
        ("Include config\n", "include each other"),
        ("nonsense\n", "Unparsable line nonsense"),
        ("CanonicalizeHostname yes\nCanonicalizeFallbackLocal no\nCanonicalDomains invalid\n", "gpu"),
        ("CanonicalizeHostname yes\n", "canonicaldomains"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_said_so(home: Path, text: str, says: str) -> None:
    configure(home, text)
    with pytest.raises(UsageError, match=says) as caught:
        targets(document())
    assert caught.value.hint


def test_a_proxy_command_does_not_matter_when_the_document_names_the_bastion(home: Path) -> None:
    configure(home, "Host gpu\n  ProxyCommand nc %h %p\nHost off\n  ProxyCommand none\n")
    assert len(targets(document(proxy_jump="none"))) == 1
    assert len(targets(document("off"))) == 1


@pytest.mark.parametrize("jump", ["a:0", "a:x", "user@", "a:99999"])
def test_a_bastion_that_is_none_is_refused(home: Path, jump: str) -> None:
    with pytest.raises(UsageError, match="proxy_jump"):
        targets(document(proxy_jump=jump))


def test_included_files_count_and_what_follows_them_still_holds_for_all(home: Path) -> None:
    (home / ".ssh" / "config.d").mkdir()
    configure(home, "Host gpu\n  User inner\n", "config.d/a")
    configure(home, "Include config.d/*\nPort 77\n")
    assert targets(document())[0].who == "inner@gpu:77"
    assert targets(document("other"))[0].port == 77


def test_a_named_configuration_must_be_there(home: Path) -> None:
    with pytest.raises(AutotunerError, match="No such file"):
        targets(document(config_file="/no/such/config"))


def test_a_host_key_alias_is_the_name_that_is_looked_up(home: Path) -> None:
    configure(home, "Host gpu\n  HostKeyAlias cluster\n")
    assert targets(document(port=2222))[0].key_name == "cluster"


def test_secrets_are_read_where_the_reference_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", " word ")
    (tmp_path / "pw").write_text(" word \n")
    assert secret("env:PW", "password") == secret(f"file:{tmp_path}/pw", "password") == " word "
    monkeypatch.delenv("PW")
    with pytest.raises(UsageError, match="password: environment variable PW is not set"):
        secret("env:PW", "password")
    with pytest.raises(AutotunerError, match="No such file"):
        secret(f"file:{tmp_path}/none", "password")


def test_the_registry_makes_it_without_touching_the_network() -> None:
    made = transport_for(host(transport=document("192.0.2.1", user="u", config_file="none")))
    assert isinstance(made, SshTransport)
    assert (made.address, made.hostname, made.interruptions, made.rtt_s) == ("u@192.0.2.1:22", "192.0.2.1", 0, None)
    made.close()
