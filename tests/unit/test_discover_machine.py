"""What Linux and systemd print, as recorded on real hosts and in their documented forms, and what is read from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner.discover import clock, machine, survey, system
from autotuner.discover.machine_checks import holder
from autotuner.model.machine import Disk, Machine, Memory, Processors

DATA = Path(__file__).parents[1] / "data" / "discover"


def data(name: str) -> str:
    return (DATA / name).read_text()


def test_disks() -> None:
    local = machine.parse_disk("\n".join(data("df-h200.txt").splitlines()[::2]), "/var/lib/x")
    assert local == Disk(path="/var/lib/x", kind="ext4", size_gib=251.972, free_gib=127.979, mount="/")
    network = machine.parse_disk(data("df-network.txt"), "/mnt/models and more/k")
    assert network is not None
    assert (network.kind, network.mount) == ("nfs4", "/mnt/models and more")
    full = machine.parse_disk(data("df-full.txt"), "/")
    assert full is not None
    assert full.free_gib == 0.0
    overlay = machine.parse_disk(data("df-overlay-unknown.txt"), "/")
    assert overlay is not None
    assert overlay.kind == "overlay"
    for nothing in ("", data("df-malformed.txt"), data("df-full.txt").splitlines()[0]):
        assert machine.parse_disk(nothing, "/") is None


def test_memory_and_swap() -> None:
    assert machine.parse_memory(data("meminfo-h200.txt")) == Memory(total=251.77, available=251.19, swap=0.0, swap_used=0.0)
    swapping = machine.parse_memory(data("meminfo-swap.txt"))
    assert (swapping.swap, swapping.swap_used) == (8.0, 4.0)
    assert machine.parse_memory("MemTotal: many kB\nMemTotal:  12,5 kB") == Memory()


def test_processors_of_old_and_new_lscpu() -> None:
    assert machine.parse_processors(data("lscpu-h200.json")) == Processors(
        count=32, model="Intel(R) Xeon(R) Processor", sockets=1, numa_nodes=1, hypervisor="KVM"
    )
    nested = machine.parse_processors(data("lscpu-2-sockets.json"))
    assert (nested.count, nested.sockets, nested.numa_nodes, nested.hypervisor) == (208, 2, 2, None)
    for nothing in ("", "lscpu: unrecognized option", "[]", '{"lscpu": null}', '{"lscpu": [1]}', data("lscpu-h200.json")[:300]):
        assert machine.parse_processors(nothing) == Processors()


def test_governors_and_limits() -> None:
    assert machine.parse_governors(data("governors-mixed.txt")) == {"performance": 3, "powersave": 5}
    assert machine.parse_governors("") == {}
    assert machine.parse_limits(data("limits-root.txt")) == {"nofile": (20000, 20000), "memlock": (None, None)}
    assert machine.parse_limits(data("limits-user.txt")) == {"nofile": (1024, 20000), "memlock": (8388608, 8388608)}


def test_sockets_as_root_sees_them() -> None:
    found = {socket.port: socket for socket in system.parse_sockets(data("ss-root.txt"))}
    assert set(found) == {22, 30000, 8080}
    assert found[30000].holders == (("python3", 104), ("python3", 98))
    assert (found[30000].uid, found[30000].unit) == (998, "sglang.service")
    assert (found[22].uid, found[22].address) == (0, "::")
    assert holder(found.values(), 30000) == "python3 (pid 104), python3 (pid 98) of sglang.service"
    assert holder(found.values(), 30001) is None


def test_sockets_of_others_are_named_by_unit_or_user() -> None:
    found = system.parse_sockets(data("ss-user.txt"))
    assert holder(found, 30000) == "a process of sglang.service that this user cannot see"
    assert holder(found, 8123) == "python3 (pid 103) of session-3.scope"
    plain = system.parse_sockets(data("ss-plain.txt"))
    assert holder(plain, 22) == "a process of another user that this user cannot see"
    assert holder(plain, 30000) == "nginx (pid 812), nginx (pid 811)"
    cut = system.parse_sockets(data("ss-malformed.txt"))
    assert [(socket.port, socket.holders) for socket in cut] == [(80, ())]


def test_units() -> None:
    production, missing, masked = system.parse_units(data("units-show.txt"))
    assert (production.name, production.active, production.user, production.main_pid) == ("sglang.service", "active", "sglang", 35)
    assert production.needs_reload
    assert production.limits == {"nofile": 1048576, "memlock": None}
    assert (missing.load, missing.main_pid, missing.needs_reload) == ("not-found", None, False)
    assert (masked.load, masked.enablement) == ("masked", "masked")
    (old,) = system.parse_units(data("units-old.txt"))
    assert (old.active, old.limits) == ("failed", {"nofile": None, "memlock": 65536})
    (broken,) = system.parse_units(data("units-malformed.txt"))
    assert (broken.name, broken.main_pid, broken.limits) == ("a.service", None, {})


def test_units_of_processes() -> None:
    assert system.parse_process_units(data("process-units.txt")) == {4242: "sglang.service", 4300: "mps.service", 77: None}
    assert system.unit_of("/user.slice/user-1000.slice/user@1000.service/init.scope") == "init.scope"
    assert system.unit_of("/user.slice/user-1000.slice/user@1000.service") == "user@1000.service"


def test_the_system() -> None:
    assert system.parse_release(data("release-ubuntu.txt")) == "Ubuntu 24.04.3 LTS"
    assert system.parse_release("NAME='Small Linux'\nID=small\n") == "Small Linux"
    assert system.parse_systemd("systemd 252 (252.39-1~deb12u2)\n+PAM +AUDIT\n") == 252
    assert system.parse_systemd("timeout: failed to run command 'systemctl': No such file or directory") is None
    assert [system.parse_cgroups(kind) for kind in ("cgroup2fs\n", "tmpfs\n", "stat: cannot read")] == [2, 1, None]


def test_clocks_differ_only_beyond_what_the_way_between_them_hides() -> None:
    exact = clock.skew(before=1000.0, text="1000.250000000\n", after=1000.2)
    assert exact is not None
    assert exact.ahead_s == pytest.approx(0.15)
    assert exact.uncertainty_s == pytest.approx(0.1)
    slow_way = clock.skew(before=1000.0, text="1004.000000000", after=1006.0)
    assert slow_way is not None
    assert not slow_way.exceeds(2.0), "the answer may have been given at any time in between"
    coarse = clock.skew(before=1000.0, text="1002.%N", after=1000.0)
    assert coarse is not None
    assert (coarse.ahead_s, coarse.uncertainty_s) == (2.5, 0.5)
    behind = clock.skew(before=1000.0, text="910.000000000", after=1000.1)
    assert behind is not None
    assert behind.exceeds(2.0)
    assert clock.skew(before=0.0, text="date: invalid", after=1.0) is None


def test_sections_that_were_cut_off_have_no_end() -> None:
    mark = "\x1e"
    text = f"noise\n{mark}uid\n0\n\n{mark}=0\n\n{mark}gpus\nFailed\n\n{mark}=18\n\n{mark}smi\nhalf a li"
    found = survey.parse_sections(text)
    assert found == {
        "uid": survey.Section(text="0\n\n", returncode=0),
        "gpus": survey.Section(text="Failed\n\n", returncode=18),
        "smi": survey.Section(text="half a li", returncode=None),
    }
    assert survey.machine_of(found).uid == 0
    assert survey.machine_of({}) == Machine()


@given(st.text() | st.text(alphabet='LISTEN \n=,:./"()[]0123456789abc{}kB%'))
def test_no_text_breaks_a_parser(text: str) -> None:
    machine.parse_disk(text, "/")
    machine.parse_memory(text)
    machine.parse_processors(text)
    machine.parse_governors(text)
    machine.parse_limits(text)
    system.parse_sockets(text)
    system.parse_units(text)
    system.parse_process_units(text)
    system.parse_release(text)
    system.parse_systemd(text)
    system.parse_cgroups(text)
    clock.parse_date(text)


@given(st.dictionaries(st.sampled_from(["user", "uid", "lscpu", "disk-state", "sockets", "units", "topology", "states", "smi"]), st.text()))
def test_any_survey_describes_a_machine(texts: dict[str, str]) -> None:
    survey.machine_of({name: survey.Section(text=text, returncode=0) for name, text in texts.items()})


@given(st.text())
def test_any_text_is_a_survey(text: str) -> None:
    survey.parse_sections(text)
