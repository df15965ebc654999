from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner.discover.gpu_samples import AppSample, GpuSample, gpu_reports, parse_line, spoilt
from autotuner.model.measurement import GpuReport

DATA = Path(__file__).parents[1] / "data" / "discover"
FIRST, SECOND = "GPU-0a2b3c4d-1111-2222-3333-444455556666", "GPU-1a2b3c4d-1111-2222-3333-444455556666"


def read(name: str) -> tuple[list[GpuSample], list[AppSample]]:
    found = [parse_line(line, number) for number, line in enumerate((DATA / name).read_text().splitlines())]
    return [each for each in found if isinstance(each, GpuSample)], [each for each in found if isinstance(each, AppSample)]


def sample(number: int = 0, *, index: int = 0, mhz: float | None = 1980.0, reasons: tuple[str, ...] = ()) -> GpuSample:
    uuid = (FIRST, SECOND)[index]
    values = {"power_w": 300.0, "temperature_c": 60.0, "utilization": 0.9, "memory_mib": 8000.0}
    return GpuSample(at_ns=number, index=index, uuid=uuid, sm_mhz=mhz, reasons=reasons, **values)  # type: ignore[arg-type]


def test_reports_hold_means_and_worst_values_of_each_gpu() -> None:
    samples, apps = read("watch-2-h200.csv")
    assert gpu_reports(samples, ()) == (
        GpuReport(
            index=0,
            power_w=525.0,
            sm_clock_mhz=1845.0,
            temperature_c=64.0,
            utilization=0.98,
            memory_mib=126976.0,
            throttled=("power-cap",),
        ),
        GpuReport(index=1, power_w=349.5, sm_clock_mhz=1980.0, temperature_c=56.0, utilization=0.96, memory_mib=126974.0),
    )
    assert [(app.pid, app.gpu) for app in apps] == [(4242, FIRST), (4243, SECOND)]


def test_a_gpu_at_its_power_limit_is_sound() -> None:
    samples, _ = read("watch-2-h200.csv")
    assert spoilt(samples, gpu_reports(samples, ())) == ()


def test_what_is_no_sample_is_passed_over_and_what_is_not_said_is_not_known() -> None:
    samples, apps = read("watch-malformed.csv")
    assert [each.index for each in samples] == [1]
    assert [(app.pid, app.gpu) for app in apps] == [(4242, "GPU-0a2b")]
    assert gpu_reports(samples, ()) == (GpuReport(index=1),)
    assert spoilt(samples, gpu_reports(samples, ())) == ()


@given(st.text(max_size=120))
def test_no_line_is_too_odd(line: str) -> None:
    parse_line(line, 0)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("hardware-slowdown", "the hardware slowed it down"),
        ("hardware-thermal", "it was too hot"),
        ("software-thermal", "it was too hot"),
        ("power-brake", "its power supply held it back"),
    ],
)
def test_a_throttled_gpu_is_told_with_how_often(reason: str, said: str) -> None:
    samples = [sample(0), sample(1, reasons=(reason,)), sample(2, reasons=(reason, "power-cap")), sample(3, index=1)]
    reports = gpu_reports(samples, ())
    assert spoilt(samples, reports) == (f"GPU 0 was throttled in 2 of 3 samples: {said} (60 °C)",)
    assert reports[0].throttled == tuple(sorted((reason, "power-cap")))


def test_a_clock_that_steps_within_the_window_is_told() -> None:
    steps = [sample(number, mhz=1980.0 if number < 3 else 1500.0) for number in range(6)]
    assert spoilt(steps, gpu_reports(steps, ())) == ("the clock of GPU 0 went from 1980 to 1500 MHz within the window",)
    wavering = [sample(number, mhz=1980.0 if number % 2 else 1500.0) for number in range(6)]
    assert spoilt(wavering, gpu_reports(wavering, ())) == ()
    idle = [sample(number, mhz=1980.0 if number < 3 else 300.0, reasons=("idle",)) for number in range(6)]
    assert spoilt(idle, gpu_reports(idle, ())) == ()


def test_another_tenant_is_named_on_the_gpu_that_it_uses() -> None:
    samples = [sample(0), sample(0, index=1)]
    foreign = [AppSample(at_ns=0, pid=99, gpu=SECOND), AppSample(at_ns=1, pid=99, gpu=SECOND), AppSample(at_ns=1, pid=7, gpu=SECOND)]
    reports = gpu_reports(samples, foreign)
    assert [report.foreign_pids for report in reports] == [(), (7, 99)]
    assert spoilt(samples, reports) == ("GPU 1 had another tenant: processes 7, 99, not of this server",)
