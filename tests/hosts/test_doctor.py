"""``doctor`` looks booted hosts over through real SSH: what it says of sound ones, and of ones with many troubles at once."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from autotuner.cli.doctor import Examination, as_json_text, as_text, examine
from autotuner.cli.main import run
from autotuner.documents import load_host
from autotuner.services.grant import script
from autotuner.services.hostside import packed
from tests.hosts.machine import Machine, until
from tests.hosts.production import MODEL, SIMULATE

pytestmark = pytest.mark.host

DATA = Path(__file__).parents[1] / "data" / "discover"
GPU_TOOL = """\
#!/bin/sh
case "$*" in
*compute_cap*) cat /srv/smi/gpus ;;
*persistence_mode*) cat /srv/smi/states ;;
*clocks_event_reasons*) cat /srv/smi/reasons ;;
*compute-apps*) cat /srv/smi/apps ;;
*topo*) cat /srv/smi/topo ;;
*) cat /srv/smi/smi ;;
esac
"""

Look = Callable[..., Examination]


@pytest.fixture
def look(machine: Machine, tmp_path: Path) -> Look:
    """Examine the machine by a document that serves with the simulated engine as a unit, with changes."""

    def examined(*, user: str = "root", **changes: object) -> Examination:
        document: dict[str, object] = {
            "apiVersion": "autotuner/v1",
            "kind": "Host",
            "metadata": {"name": "lab"},
            "transport": machine.ssh_document(user=user),
            "engine": {"name": "sglang", "python": machine.engine_python},
            "model": {"path": MODEL},
            "service": {"manager": "systemd", "production": {"unit": "prod.service"}},
            "endpoint": {"port": 30000},
            "limits": {"disk_free_gib": 0.5},
            "simulate": SIMULATE,
        }
        path = tmp_path / "lab.yaml"
        path.write_text(json.dumps({name: value for name, value in {**document, **changes}.items() if value is not None}))
        return examine(load_host(str(path)), tmp_path / "state")

    return examined


def told(found: Examination) -> dict[str, tuple[str, str]]:
    """Name → (status, everything that was said under it)."""
    assert all(check.hint for check in found.checks if check.status == "fail"), "every failure says what to do"
    names = dict.fromkeys(check.name for check in found.checks)
    rank = ("pass", "warning", "fail")
    return {
        name: (
            max((check.status for check in found.checks if check.name == name), key=rank.index),
            "; ".join(check.detail for check in found.checks if check.name == name),
        )
        for name in names
    }


def object_of(found: Examination) -> Mapping[str, Any]:
    return dict(json.loads(as_json_text(found)))


def test_a_sound_host_passes_with_facts_from_two_worlds(machine: Machine, look: Look):
    machine.light_production()
    pid = machine.out("systemctl", "show", "-p", "MainPID", "--value", "prod.service")

    found = look()

    checks = told(found)
    assert {name: said for name, said in checks.items() if said[0] == "fail"} == {}
    assert {"ssh", "state-folder", "disk", "systemd", "production", "clock"} <= set(checks)
    assert checks["clock"][0] == "pass", "one clock for both machines"
    assert found.facts is not None
    assert (found.facts.simulated, found.facts.gpus[0].name) == (True, SIMULATE["gpu"]["name"])
    assert found.machine is not None
    assert (found.machine.systemd, found.machine.booted_by_systemd, found.machine.uid) == (252, True, 0)
    assert [unit.name for unit in found.machine.units] == ["prod.service"]
    told_as_object = object_of(found)
    assert told_as_object["healthy"] is True
    assert told_as_object["machine"]["kernel"] == machine.out("uname", "-r")
    assert as_text(found).splitlines()[-1].startswith("lab can be tuned: ")
    assert machine.out("systemctl", "show", "-p", "MainPID", "--value", "prod.service") == pid, "nothing was touched"
    assert not machine.out("sh", "-c", "ls /etc/systemd/system | grep autotuner"), "nothing was installed"


def test_all_troubles_of_a_host_are_told_in_one_look(machine: Machine, look: Look):
    machine.write("/usr/lib/systemd/system/prod.service", "[Service]\nExecStart=/bin/sleep infinity\n")
    machine.run(["systemctl", "start", "prod.service"])
    machine.run(["systemctl", "mask", "-q", "prod.service"])
    machine.small_disk("/var/lib/autotuner", 4)
    machine.run(["systemd-run", "-q", "--unit=foreign", "python3", "-m", "http.server", "30000"])
    until(lambda: "30000" in machine.out("ss", "-ltn"), "the foreign listener")
    pid = machine.out("systemctl", "show", "-p", "MainPID", "--value", "foreign.service")

    found = look(
        service={"manager": "systemd", "production": {"unit": "prod.service"}, "conflicts": ["nosuch.service"]},
        limits={"disk_free_gib": 0.5},
    )

    checks = told(found)
    assert checks["disk"][0] == "fail"
    assert checks["production"][0] == "fail"
    for word in ("prod.service runs and is masked", "nosuch.service does not exist", f"(pid {pid})"):
        assert word in checks["production"][1], word
    assert found.facts is not None, "the facts are told all the same"
    assert as_text(found).splitlines()[-1].startswith("lab cannot be tuned: ")
    assert machine.out("systemctl", "is-active", "foreign.service") == "active"

    machine.run(["systemctl", "stop", "foreign.service"])
    machine.run(["systemctl", "unmask", "-q", "prod.service"])
    machine.writable("/var/lib/autotuner")
    silent = told(look())["production"]
    assert silent[0] == "fail"
    assert "does not answer" in silent[1], "whether it was brought back could not be told"


def test_what_a_candidate_could_not_be_started_with_is_told_as_its_user_would_find_it(machine: Machine, look: Look):
    machine.add_user("server")
    machine.light_production(directives={"User": "server"})
    machine.write("/srv/token", "s3cret", mode=0o600)
    machine.write("/srv/private/file", "")
    machine.run(["chmod", "700", "/srv/private"])
    engine = {"name": "sglang", "python": "/usr/bin/python9", "cwd": "/srv/private"}

    found = look(engine=engine, secrets={"A_TOKEN": "file:/srv/token", "B_TOKEN": "env:NOBODY_SET_IT"})

    failed = {check.detail: check.hint for check in found.checks if check.name == "launch"}
    assert failed.keys() == {
        "/srv/private: Permission denied",
        "/usr/bin/python9: No such file or directory",
        "secret A_TOKEN: /srv/token: Permission denied",
        "secret B_TOKEN: the variable NOBODY_SET_IT is not set on the host",
    }
    assert "readable by server" in str(failed["secret A_TOKEN: /srv/token: Permission denied"])
    assert "a command that comes over SSH" in str(failed["secret B_TOKEN: the variable NOBODY_SET_IT is not set on the host"])

    machine.run(["chown", "server", "/srv/token", "/srv/private"])
    assert told(look(engine={**engine, "python": "python3"}, secrets={"A_TOKEN": "file:/srv/token"}))["launch"] == (
        "pass",
        "program, folder and the secret are there for a server",
    )


def test_a_disk_without_a_single_byte_hides_no_other_trouble(machine: Machine, look: Look):
    machine.run(["systemctl", "mask", "prod.service"])
    machine.small_disk("/var/lib/autotuner", 1)
    machine.fill("/var/lib/autotuner")
    machine.run(["systemd-run", "-q", "--unit=foreign", "python3", "-m", "http.server", "30000"])
    until(lambda: "30000" in machine.out("ss", "-ltn"), "the foreign listener")
    pid = machine.out("systemctl", "show", "-p", "MainPID", "--value", "foreign.service")

    checks = told(look())

    assert checks["state-folder"][0] == "fail"
    assert checks["disk"][0] == "fail"
    assert checks["units"] == ("fail", "prod.service is masked")
    assert checks["port"][0] == "warning"
    assert f"python3 (pid {pid}) of foreign.service" in checks["port"][1]


def test_a_host_key_that_is_not_known_is_a_check_of_its_own(machine: Machine, look: Look):
    machine.known_hosts.write_text("")

    found = look()

    (ssh,) = (check for check in found.checks if check.name == "ssh")
    assert ssh.status == "fail"
    assert "SHA256:" in f"{ssh.detail}{ssh.hint}", "the fingerprint is shown"
    assert (found.facts, found.machine) == (None, None)
    assert object_of(found)["machine"] is None


def test_a_user_without_rights_is_told_what_an_administrator_can_do(machine: Machine, look: Look):
    machine.light_production()
    machine.add_user("tuner")

    checks = told(look(user="tuner"))

    assert checks["sudo"][0] == "fail"
    assert "user tuner may not run the tuner's program as root" in checks["sudo"][1]
    assert checks["ssh"][0] == "pass"
    assert "state-folder" not in checks, "one cause is told once"
    assert "of prod.service" in checks["port"][1], "whose process it is can be told, though not which"

    machine.run(["sh", "-s"], stdin=script("tuner", ["prod.service"], packed()))
    granted = told(look(user="tuner"))
    assert {name: said for name, said in granted.items() if said[0] == "fail"} == {}
    assert "production" in granted


def test_a_clock_that_is_wrong_is_told(machine: Machine, look: Look, monkeypatch: pytest.MonkeyPatch):
    machine.light_production()
    monkeypatch.setattr("autotuner.discover.clock.COMMAND", ("date", "-d", "+90 seconds", "+%s.%N"))

    checks = told(look())

    assert checks["clock"][0] == "warning"
    assert "s ahead of the controller's" in checks["clock"][1]


def h200s(machine: Machine) -> None:
    """Two H200 as their own tools described them, a model with whole and damaged weights, and an engine that cannot be used."""
    for name, file in {
        "gpus": "gpus-2-h200.csv",
        "reasons": "reasons-2-h200.csv",
        "topo": "topo-2-h200.txt",
        "smi": "smi-2-h200.txt",
    }.items():
        machine.write(f"/srv/smi/{name}", (DATA / file).read_text())
    machine.write("/srv/smi/states", (DATA / "states-2-h200.csv").read_text().replace("Disabled, 0, 375", "Disabled, 3, 375"))
    machine.write("/usr/local/bin/nvidia-smi", GPU_TOOL, mode=0o755)
    machine.write("/srv/model/config.json", (DATA / "config-gqa.json").read_text())
    header = json.dumps({"a": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}})
    (machine.root / "srv/model/model-00001-of-00002.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"\0" * 8)
    (machine.root / "srv/model/model-00002-of-00002.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode())


def test_real_hardware_is_read_through_the_tools_of_the_host(machine: Machine, look: Look):
    machine.light_production()
    h200s(machine)
    machine.run(["systemd-run", "-q", "--unit=trainer", "sleep", "infinity"])
    served, trainer = (machine.out("systemctl", "show", "-p", "MainPID", "--value", unit) for unit in ("prod.service", "trainer.service"))
    uuid = "GPU-84c5fe3b-fb22-558b-1b6e-987f8f888fad"
    machine.write("/srv/smi/apps", f"{served}, python3, 81920, {uuid}\n{trainer}, train.py, 4096, {uuid}\n")

    found = look(simulate=None, engine={"name": "sglang", "python": "/usr/bin/python3"}, model={"path": "/srv/model"})

    checks = told(found)
    assert checks["engine"][0] == "fail", "there is no SGLang on this machine"
    assert checks["gpus"] == ("pass", "2 × NVIDIA H200, 140 GiB, nvlink, driver 580.159.04")
    assert checks["gpu-clocks"][0] == "pass"
    assert checks["gpu-memory-errors"] == ("fail", "uncorrectable memory errors since the driver was loaded: GPU 0: 3")
    assert checks["gpu-processes"] == (
        "fail",
        f"foreign processes use the GPUs: train.py (pid {trainer} of trainer.service, 4096 MiB)",
    )
    assert checks["model-files"][0] == "fail"
    assert "model-00002-of-00002.safetensors: it has" in checks["model-files"][1]
    assert found.facts is None
    machine_object = object_of(found)["machine"]
    assert machine_object["links"] == {"0-1": "NV18"}
    assert machine_object["driver_cuda"] == [13, 0]
    assert [gpu["numa"] for gpu in machine_object["gpus"]] == ["0", "0"]
    assert "GPU state" in as_text(found)
    assert machine.out("systemctl", "is-active", "trainer.service") == "active"


def test_a_warning_that_was_told_before_the_night_is_not_told_again(
    machine: Machine, look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    machine.light_production()
    machine.light_production("idle.service", port=30001, start=False)
    look(service={"manager": "systemd", "production": {"unit": "prod.service"}, "conflicts": ["idle.service"]})
    space = str(Path(__file__).parents[2] / "search_spaces" / "sglang-no-speculation.yaml")
    tiny = ("--trials", "1", "--confirm-rounds", "0", "--contexts", "60", "--concurrency", "1", "--output-tokens", "16", "--window", "1")

    run(["--state-dir", str(tmp_path / "state"), "tune", str(tmp_path / "lab.yaml"), "--space", space, *tiny])

    warned = [line for line in capsys.readouterr().err.splitlines() if "idle.service is inactive" in line]
    assert warned == ["warning: idle.service is inactive and will be left so"]
    assert machine.out("systemctl", "is-active", "prod.service") == "active"
