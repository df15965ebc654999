"""What is said about a machine, from its facts alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotuner.discover import gpus, machine, system, topology
from autotuner.discover.clock import Skew
from autotuner.discover.gpu_checks import clock_checks, gpu_checks, process_checks
from autotuner.discover.machine_checks import (
    clock_check,
    disk_checks,
    hardware_checks,
    system_checks,
    unit_checks,
    weight_checks,
)
from autotuner.model.facts import Gpu, Weights
from autotuner.model.host import Host
from autotuner.model.machine import Disk, Machine, Memory, Toolkit
from autotuner.model.recommendation import Check

DATA = Path(__file__).parents[1] / "data" / "discover"
SHM = "/dev/shm"  # noqa: S108 - named, not used
SOUND = Machine(
    user="root",
    uid=0,
    systemd=252,
    booted_by_systemd=True,
    cgroups=2,
    governors={"performance": 32},
    memory=Memory(total=256.0, available=250.0),
    disks={
        "state": Disk(path="/var/lib/autotuner", kind="ext4", size_gib=500, free_gib=200, mount="/"),
        "caches": Disk(path="/root/.cache", kind="ext4", size_gib=500, free_gib=200, mount="/"),
        "shm": Disk(path=SHM, kind="tmpfs", size_gib=128, free_gib=128, mount=SHM),
        "model": Disk(path="/models/m", kind="xfs", size_gib=2000, free_gib=10, mount="/models"),
    },
    limits={"nofile": (1024, 1048576), "memlock": (None, None)},
    driver_cuda=(13, 0),
    toolkit=Toolkit(version=(13, 0), where="/usr/local/cuda"),
)


def data(name: str) -> str:
    return (DATA / name).read_text()


def host(**changes: object) -> Host:
    return Host.model_validate(
        {
            "apiVersion": "autotuner/v1",
            "kind": "Host",
            "metadata": {"name": "lab"},
            "transport": {"type": "local"},
            "engine": {"name": "sglang"},
            "model": {"path": "/models/m"},
            **changes,
        }
    )


def b300s() -> tuple[tuple[Gpu, ...], Machine]:
    """Eight B300, each with a trouble of its own."""
    seen = tuple(Gpu(index=index, name="NVIDIA B300 SXM6 AC", memory_gib=268.6, sm=103) for index in range(8))
    states, reasons = gpus.parse_states(data("states-8-b300-trouble.csv")), gpus.parse_reasons(data("reasons-8-b300-trouble.csv"))
    return seen, replace(SOUND, gpus=states, clock_reasons=reasons)


def by_name(checks: tuple[Check, ...]) -> dict[str, Check]:
    assert all(check.hint for check in checks if check.status != "pass")
    return {check.name: check for check in checks}


def test_sound_gpus_pass() -> None:
    seen, driver = gpus.parse_gpus(data("gpus-2-h200.csv"))
    found = replace(
        SOUND,
        gpus=gpus.parse_states(data("states-2-h200.csv")),
        clock_reasons=gpus.parse_reasons(data("reasons-2-h200.csv")),
        links=topology.parse_matrix(data("topo-2-h200.txt")),
    )
    checks = (
        *gpu_checks(host(), seen, "nvlink", driver, found),
        *clock_checks(seen, found),
        *process_checks(found, frozenset(), frozenset()),
    )
    assert {check.status for check in checks} == {"pass"}
    assert by_name(checks)["gpu-clocks"].detail == "no GPU is slowed down", "idle GPUs rest at low clocks"


def test_every_trouble_of_a_gpu_is_told_by_its_index() -> None:
    seen, found = b300s()
    checks = by_name(gpu_checks(host(), seen, "nvlink", "580.95.05", found))
    assert (checks["mig"].status, checks["mig"].detail.startswith("GPU 3 is divided")) == ("fail", True)
    assert (checks["gpu-memory-errors"].status, checks["gpu-memory-errors"].detail.endswith("GPU 5: 4")) == ("fail", True)
    assert (checks["persistence"].status, checks["persistence"].detail.startswith("GPU 2 is without")) == ("warning", True)


def test_throttling_is_told_but_neither_rest_nor_power_limits() -> None:
    seen, found = b300s()
    (check,) = clock_checks(seen, found)
    assert check.status == "warning"
    assert check.detail == "GPU 4 at 405 of 2032 MHz: the hardware slows it down and it is too hot (88 °C)"


def test_a_busy_gpu_at_low_clocks_without_a_reason_is_told() -> None:
    seen, found = b300s()
    busy = replace(found, clock_reasons=dict.fromkeys(range(8), ()))
    (check,) = clock_checks(seen[3:4], busy)
    assert check.detail == "far below their highest clock while busy: GPU 3 at 345 of 2032 MHz"
    assert clock_checks(seen, replace(found, clock_reasons={})) == (), "a driver that gives no reasons says nothing"
    assert [check.status for check in clock_checks(seen[:3], found)] == ["pass"], "other people's GPUs do not matter"


def test_mig_is_right_where_the_document_asks_for_it() -> None:
    seen, found = b300s()
    asked = host(engine={"name": "sglang", "env": {"CUDA_VISIBLE_DEVICES": "MIG-7089d0f3"}})
    assert "mig" not in by_name(gpu_checks(asked, seen, "nvlink", "580.95.05", found))


def test_states_of_gpus_that_the_engine_does_not_see_do_not_count() -> None:
    seen, found = b300s()
    assert not {"mig", "gpu-memory-errors", "persistence"} & set(by_name(gpu_checks(host(), seen[:2], "nvlink", "580.95.05", found)))


def test_a_driver_that_does_not_say_passes() -> None:
    seen = (Gpu(index=0, name="RTX", memory_gib=96, sm=120),)
    found = replace(SOUND, gpus=gpus.parse_states(data("states-2-not-supported.csv"))[:1])
    checks = by_name(gpu_checks(host(), seen, "single", "580.95.05", found))
    assert set(checks) == {"gpus", "persistence", "cuda-toolkit"}
    assert gpu_checks(host(), (), None, "none", SOUND)[0].status == "fail"


def test_processes_of_production_are_not_foreign() -> None:
    found = replace(
        SOUND, processes=gpus.parse_processes(data("apps-three.csv")), process_units=system.parse_process_units(data("process-units.txt"))
    )
    (told,) = process_checks(found, frozenset(), frozenset({"sglang.service"}))
    assert told.status == "warning", "one of them cannot be seen from here"
    assert "4242" not in told.detail
    assert "nvidia-cuda-mps-server (pid 4300 of mps.service, 30 MiB), [Not Found] (pid 9, ? MiB)" in told.detail
    (told,) = process_checks(replace(found, processes=found.processes[:2]), frozenset({4300}), frozenset())
    assert (told.status, "/opt/venv/bin/python (pid 4242 of sglang.service, 81920 MiB)" in told.detail) == ("fail", True)
    (told,) = process_checks(found, frozenset({4242, 4300, 9}), frozenset())
    assert told.status == "pass"


@pytest.mark.parametrize(
    ("toolkit", "said"),
    [
        (None, "nvcc was not found"),
        (Toolkit(version=(12, 8), where="/opt/cuda", compiler=False), "CUDA 12.8 without its compiler at /opt/cuda"),
        (Toolkit(version=(13, 1), where="/opt/cuda"), "CUDA toolkit 13.1 is newer than what driver 580.159.04 was made for"),
        (Toolkit(version=(11, 2), where="/opt/cuda"), "cannot compile for these GPUs (sm_90)"),
    ],
)
def test_toolkits_that_would_fail_at_the_first_kernel(toolkit: Toolkit | None, said: str) -> None:
    seen, driver = gpus.parse_gpus(data("gpus-2-h200.csv"))
    check = by_name(gpu_checks(host(), seen, "nvlink", driver, replace(SOUND, toolkit=toolkit)))["cuda-toolkit"]
    assert (check.status, said in check.detail) == ("warning", True)


def test_a_sound_machine_passes() -> None:
    checks = (*disk_checks(host(), SOUND), *hardware_checks(host(), SOUND, 8), *system_checks(host(), SOUND))
    assert {check.status for check in checks} == {"pass"}
    assert set(by_name(checks)) == {"disk", "shared-memory"}


def test_disks_of_state_and_caches_want_room_and_the_models_does_not() -> None:
    caches = Disk(path="/home/u/.cache", kind="ext4", size_gib=10, free_gib=1.25, mount="/home")
    full = machine.parse_disk(data("df-full.txt"), "/var/lib/autotuner")
    remote = machine.parse_disk(data("df-network.txt"), "/mnt/models and more/m")
    assert full is not None
    assert remote is not None
    checks = by_name(disk_checks(host(), replace(SOUND, disks={"state": full, "caches": caches, "model": remote})))
    assert (checks["disk"].status, checks["cache-disk"].status, checks["model-disk"].status) == ("fail", "fail", "pass")
    assert checks["disk"].detail == "0.0 GiB free at /var/lib/autotuner (/), limits.disk_free_gib is 5"
    assert "over the network" in checks["model-disk"].detail
    assert disk_checks(host(), Machine()) == ()


def test_limits_are_those_of_the_user_or_of_the_unit() -> None:
    low = replace(
        SOUND, user="u", uid=1000, limits=machine.parse_limits(data("limits-user.txt")), units=system.parse_units(data("units-show.txt"))
    )
    files, locked = (check for check in hardware_checks(host(), low, 8) if check.name == "limits")
    assert files.detail == "open files of user u are limited to 20000, an engine under load may want 65536"
    assert locked.detail.startswith("locked memory of user u is limited to 8192 KiB")
    assert all(check.hint and "limits.conf" in check.hint for check in (files, locked))
    as_unit = host(service={"manager": "systemd", "production": {"unit": "sglang.service"}})
    assert "limits" not in by_name(hardware_checks(as_unit, low, 8)), "the unit's own limits count"
    old = replace(low, units=system.parse_units("Id=x.service\nLoadState=loaded\nLimitNOFILE=4096\nLimitMEMLOCK=65536\nUser=u\n"))
    told = [check for check in hardware_checks(as_unit, old, 8) if check.name == "limits"]
    assert [check.hint for check in told] == [
        "raise LimitNOFILE= of the unit (systemctl edit): its candidates are given the same limits",
        "raise LimitMEMLOCK= of the unit (systemctl edit): its candidates are given the same limits",
    ]


def test_root_locks_as_much_as_it_likes() -> None:
    low = replace(SOUND, limits={"nofile": (1024, None), "memlock": (65536, 65536)})
    assert "limits" not in by_name(hardware_checks(host(), low, 8))


def test_governor_swap_and_shared_memory_are_warnings() -> None:
    slow = replace(
        SOUND,
        governors=machine.parse_governors(data("governors-mixed.txt")),
        memory=machine.parse_memory(data("meminfo-swap.txt")),
        disks={"shm": Disk(path=SHM, kind="tmpfs", size_gib=0.0625, free_gib=0.0625, mount=SHM)},
    )
    checks = by_name(hardware_checks(host(), slow, 8))
    assert {name: check.status for name, check in checks.items()} == {"governor": "warning", "swap": "warning", "shared-memory": "warning"}
    assert "powersave on 5 of 8" in checks["governor"].detail
    assert "4.0 of 8.0 GiB" in checks["swap"].detail
    assert "shared-memory" not in by_name(hardware_checks(host(), slow, 1)), "one rank shares with nobody"


def test_systemd_must_run_and_may_be_changed() -> None:
    as_unit = host(service={"manager": "systemd"})
    assert [check.status for check in system_checks(as_unit, SOUND)] == ["pass"]
    (container,) = system_checks(as_unit, replace(SOUND, booted_by_systemd=False))
    assert (container.status, "systemd 252 is installed, but did not boot it" in container.detail) == ("fail", True)
    other = replace(SOUND, user="u", uid=1000, sudo=False)
    assert "autotuner service lab grant" in (by_name(system_checks(as_unit, other))["sudo"].hint or "")
    assert "sudo" not in by_name(system_checks(as_unit, replace(other, sudo=True)))
    assert system_checks(host(), other) == (), "plain processes need none of it"


def test_units_that_cannot_be_started_are_named() -> None:
    found = replace(SOUND, units=system.parse_units(data("units-show.txt")))
    checks = unit_checks(found, ["sglang", "nope.service", "systemd-timesyncd", "never-asked"])
    assert [check.detail for check in checks] == ["nope.service does not exist", "systemd-timesyncd.service is masked"]
    assert all(check.hint for check in checks)


def test_clocks() -> None:
    assert clock_check(None) == ()
    (near,) = clock_check(Skew(ahead_s=0.2, uncertainty_s=0.1))
    assert (near.status, near.detail) == ("pass", "within 0.30 s of the controller's")
    (ahead,) = clock_check(Skew(ahead_s=90.0, uncertainty_s=0.1))
    assert (ahead.status, ahead.detail) == ("warning", "the host's clock is 90.0 s ahead of the controller's (±0.1 s)")
    (behind,) = clock_check(Skew(ahead_s=-3.0, uncertainty_s=0.5))
    assert "3.0 s behind" in behind.detail


def test_damaged_weights_fail_with_the_first_of_many() -> None:
    assert weight_checks("model", None) == ()
    assert weight_checks("model", Weights(files=1, bytes=1, elements={})) == ()
    (told,) = weight_checks("model", Weights(files=9, bytes=1, elements={}, problems=("a: x", "b: x", "c: x", "d: x", "e: x")))
    assert (told.name, told.status, told.detail) == ("model-files", "fail", "model: a: x; b: x; c: x … and 2 more")
