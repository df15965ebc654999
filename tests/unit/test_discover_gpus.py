"""What NVIDIA's tools print, as recorded on real hosts and in their documented forms, and what is read from it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner.discover import gpus, toolkit, topology
from autotuner.errors import StopStudy
from autotuner.model.machine import Affinity, MigDevice, Toolkit

DATA = Path(__file__).parents[1] / "data" / "discover"


def data(name: str) -> str:
    return (DATA / name).read_text()


@pytest.mark.parametrize(
    ("name", "count", "sm", "memory", "driver"),
    [
        ("gpus-1-h200.csv", 1, 90, 140.4, "580.159.03"),
        ("gpus-2-h200.csv", 2, 90, 140.4, "580.159.04"),
        ("gpus-2-rtxpro6000.csv", 2, 120, 95.59, "575.57.08"),
        ("gpus-4-b300.csv", 4, 103, 268.59, "580.95.05"),
        ("gpus-8-rtxpro6000.csv", 8, 120, 95.59, "580.65.06"),
    ],
)
def test_gpus(name: str, count: int, sm: int, memory: float, driver: str) -> None:
    found, version = gpus.parse_gpus(data(name))
    assert [gpu.index for gpu in found] == list(range(count))
    assert {gpu.sm for gpu in found} == {sm}
    assert found[0].memory_gib == pytest.approx(memory, abs=0.01)
    assert version == driver


def test_no_output_is_no_gpu_and_a_lost_gpu_is_trouble() -> None:
    assert gpus.parse_gpus("") == ((), "none")
    for name in ("gpus-lost.csv", "gpus-no-devices.csv", "states-localized.csv"):
        with pytest.raises(StopStudy, match="nvidia-smi: not understood"):
            gpus.parse_gpus(data(name))


@pytest.mark.parametrize(
    ("name", "code", "message", "hint"),
    [
        ("nvml-mismatch.txt", 18, "failed: Failed to initialize NVML: Driver/library version mismatch", "reboot the host"),
        ("driver-not-loaded.txt", 9, "couldn't communicate with the NVIDIA driver", "kernel module is not loaded"),
        ("gpus-no-devices.csv", 6, "No devices were found", "was it started with its GPUs"),
        ("gpus-no-devices.csv", 0, "No devices were found", "was it started with its GPUs"),
        ("gpus-2-h200.csv", None, "was not asked to its end", "does it hang"),
    ],
)
def test_a_driver_in_trouble_is_told_with_what_to_do(name: str, code: int | None, message: str, hint: str) -> None:
    with pytest.raises(StopStudy) as told:
        gpus.answered(data(name), code)
    assert message in told.value.message
    assert hint in (told.value.hint or "")


@pytest.mark.parametrize(
    ("wanted", "indices"), [(None, [0, 1, 2, 3]), ("2,0", [2, 0]), ("GPU-1a2b3c4d", [1]), ("0,7,1", [0]), ("", []), ("-1", [])]
)
def test_visible_devices_as_cuda_reads_them(wanted: str | None, indices: list[int]) -> None:
    found, _ = gpus.parse_gpus(data("gpus-4-b300.csv"))
    assert [gpu.index for gpu in gpus.visible(found, wanted)] == indices


def test_a_mig_device_is_a_gpu_with_the_memory_of_its_profile() -> None:
    whole, _ = gpus.parse_gpus(data("gpus-4-b300.csv"))
    devices = gpus.parse_mig_devices(data("mig-list.txt"))
    assert [(device.profile, device.parent) for device in devices] == [("3g.40gb", 0), ("1g.10gb+me", 0)]
    seen = gpus.visible(whole, "MIG-11c29e81,MIG-7089d0f3-293f-58c9-8f8c-5ea666eedbde,0", devices)
    assert [(gpu.index, gpu.memory_gib) for gpu in seen] == [(0, 10.0), (0, 40.0), (0, 268.59)]
    assert "MIG 1g.10gb+me" in seen[0].name
    assert gpus.visible(whole, "MIG-unknown", devices) == ()
    assert gpus.visible(whole[1:], "MIG-11c29e81", devices) == ()
    assert [gpus.names_mig(wanted) for wanted in (None, "", "0,1", "GPU-1", "0, MIG-1")] == [False, False, False, False, True]


def test_states_as_an_h200_tells_them() -> None:
    found = gpus.parse_states(data("states-2-h200.csv"))
    assert [state.index for state in found] == [0, 1]
    first = found[0]
    assert (first.bus, first.persistence, first.mig, first.ecc_uncorrected) == ("00000000:00:06.0", True, False, 0)
    assert (first.sm_mhz, first.sm_max_mhz, first.temperature_c, first.power_w, first.power_limit_w) == (375, 1980, 35, 115.35, 700.0)


def test_what_a_gpu_does_not_tell_is_not_guessed() -> None:
    one, other = gpus.parse_states(data("states-2-not-supported.csv"))
    assert (one.persistence, one.mig, one.ecc_uncorrected) == (False, None, None)
    assert (other.power_w, other.power_limit_w, other.sm_mhz) == (None, None, 2400)
    assert gpus.parse_states(data("states-localized.csv")) == ()
    assert [state.index for state in gpus.parse_states(data("states-truncated.csv"))] == [0]


def test_reasons_of_old_and_new_drivers() -> None:
    assert gpus.parse_reasons(data("reasons-2-h200.csv")) == {0: ("idle",), 1: ("idle",)}
    assert gpus.parse_reasons(data("reasons-old-driver.csv")) == {0: ("power-cap",)}
    trouble = gpus.parse_reasons(data("reasons-8-b300-trouble.csv"))
    assert trouble[4] == ("hardware-slowdown", "software-thermal", "hardware-thermal")
    assert trouble[0] == ()
    assert len(trouble) == 8


def test_gpu_processes_and_memory() -> None:
    found = gpus.parse_processes(data("apps.csv"))
    assert [(process.pid, process.name, process.memory_mib) for process in found] == [
        (4242, "/opt/venv/bin/python", 81920),
        (4243, "sglang::scheduler_TP1, EP1", None),
    ]
    assert gpus.parse_processes(data("apps-header.csv")) == ()
    assert gpus.parse_memory("GPU-a, 812\nGPU-b, [N/A]\n\n") == {"GPU-a": 812}


@pytest.mark.parametrize(
    ("name", "count", "link"),
    [
        ("topo-1.txt", 1, "single"),
        ("topo-2-h200.txt", 2, "nvlink"),
        ("topo-2-bridge.txt", 2, "nvlink"),
        ("topo-2-pcie.txt", 2, "pcie"),
        ("topo-4-nvswitch.txt", 4, "nvlink"),
        ("topo-4-pcie.txt", 4, "pcie"),
        ("topo-4-two-bridges.txt", 4, "pcie"),
        ("topo-4-two-bridges.txt", 2, "nvlink"),
        ("topo-8-nvswitch.txt", 8, "nvlink"),
        ("topo-8-mesh-old.txt", 8, "pcie"),
        ("topo-8-mesh-old.txt", 4, "nvlink"),
        ("topo-8-pcie.txt", 8, "pcie"),
        ("topo-failed.txt", 1, "single"),
    ],
)
def test_link(name: str, count: int, link: str) -> None:
    assert topology.link_between(range(count), data(name)) == link


@pytest.mark.parametrize("text", ["", data("topo-failed.txt"), data("topo-1.txt")])
def test_a_link_that_is_not_told_is_not_guessed(text: str) -> None:
    with pytest.raises(StopStudy, match="no entry for GPU0 to GPU1"):
        topology.link_between([0, 1], text)
    with pytest.raises(StopStudy, match="no entry for GPU1 to GPU3"):
        topology.link_between(range(4), data("topo-4-truncated.txt"))


def test_every_pair_and_the_processors_near_to_each_gpu() -> None:
    assert topology.parse_matrix(data("topo-2-h200.txt")) == {(0, 1): "NV18", (1, 0): "NV18"}
    assert topology.parse_affinities(data("topo-2-h200.txt")) == {gpu: Affinity(cpus="0-31", numa="0") for gpu in (0, 1)}
    eight = topology.parse_affinities(data("topo-8-nvswitch.txt"))
    assert (eight[3], eight[4]) == (Affinity(cpus="0-51,104-155", numa="0"), Affinity(cpus="52-103,156-207", numa="1"))
    assert topology.parse_affinities(data("topo-8-mesh-old.txt"))[7] == Affinity(cpus="20-39,60-79", numa="1")
    assert topology.parse_affinities(data("topo-2-pcie.txt"))[0] == Affinity(cpus="0-31", numa="")
    assert topology.parse_affinities(data("topo-failed.txt")) == {}


def test_the_newest_cuda_of_a_driver() -> None:
    assert toolkit.parse_driver_cuda(data("smi-2-h200.txt")) == (13, 0)
    assert toolkit.parse_driver_cuda(data("smi-8-h100-535.txt")) == (12, 2)
    for nothing in ("smi-cuda-unknown.txt", "nvml-mismatch.txt", "driver-not-loaded.txt"):
        assert toolkit.parse_driver_cuda(data(nothing)) is None


def test_the_toolkit_by_its_compiler_or_its_version_file() -> None:
    by_compiler = toolkit.parse_toolkit("where /usr/local/cuda\n" + data("nvcc-13.0.txt"))
    assert by_compiler == Toolkit(version=(13, 0), where="/usr/local/cuda", compiler=True)
    by_file = toolkit.parse_toolkit("where /opt/cuda\n" + data("cuda-version.json"))
    assert by_file == Toolkit(version=(12, 8), where="/opt/cuda", compiler=False)
    for text in ("", "where /opt/cuda\n", 'where /x\n{"cuda": {"version": 12}}', "where /x\n{"):
        assert toolkit.parse_toolkit(text) is None


@pytest.mark.parametrize(
    ("version", "driver", "driver_cuda", "sm", "told"),
    [
        ((13, 0), "580.159.04", (13, 0), 90, []),
        ((12, 8), "580.159.04", (13, 0), 90, []),
        ((13, 0), "575.57.08", (12, 9), 90, ["driver 575.57.08 is too old for CUDA toolkit 13.0, which wants 580.65 or newer"]),
        ((12, 8), "535.183.01", (12, 2), 90, ["CUDA toolkit 12.8 is newer than what driver 535.183.01 was made for (CUDA 12.2)"]),
        ((12, 4), "575.57.08", (12, 9), 120, ["CUDA toolkit 12.4 cannot compile for these GPUs (sm_120): it takes 12.8 or newer"]),
        ((12, 8), "unknown", None, 90, []),
    ],
)
def test_driver_toolkit_and_gpus_go_together(
    version: tuple[int, int], driver: str, driver_cuda: tuple[int, int] | None, sm: int, told: list[str]
) -> None:
    found = list(toolkit.mismatches(Toolkit(version=version, where="/c"), driver, driver_cuda, frozenset({sm})))
    assert len(found) == len(told)
    assert all(sentence in message for sentence, (message, _) in zip(told, found, strict=True))
    assert all(hint for _, hint in found)


LINES = st.text() | st.lists(st.sampled_from([*data("topo-8-nvswitch.txt").split("\t"), *data("states-2-h200.csv").split(","), "\n"])).map(
    " ".join
)


@given(LINES)
def test_no_text_breaks_a_parser(text: str) -> None:
    gpus.parse_states(text)
    gpus.parse_reasons(text)
    gpus.parse_processes(text)
    gpus.parse_memory(text)
    gpus.parse_mig_devices(text)
    topology.parse_matrix(text)
    topology.parse_affinities(text)
    toolkit.parse_driver_cuda(text)
    toolkit.parse_toolkit(text)


@given(LINES)
def test_gpus_that_are_not_understood_are_one_error(text: str) -> None:
    with contextlib.suppress(StopStudy):
        gpus.parse_gpus(text)


@given(st.lists(st.integers(0, 3)), st.text())
def test_a_link_is_told_or_refused(indices: list[int], text: str) -> None:
    with contextlib.suppress(StopStudy):
        assert topology.link_between(indices, text) in {"nvlink", "pcie", "single"}


@given(st.text(), st.lists(st.builds(MigDevice, uuid=st.text(), profile=st.text(), parent=st.integers(0, 9))))
def test_any_list_of_visible_devices_is_read(wanted: str, devices: list[MigDevice]) -> None:
    whole, _ = gpus.parse_gpus(data("gpus-4-b300.csv"))
    gpus.visible(whole, wanted, devices)
