from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from autotuner.engines.registry import engine_for
from autotuner.engines.sglang import SglangEngine
from autotuner.errors import UsageError
from autotuner.model.host import Host

PROFILE = {"profile": "b300", "gpu": {"name": "B300", "memory_gib": 275.0, "sm": 103, "link": "nvlink"}}


def host(name: str, **more: Any) -> Host:
    return Host.model_validate(
        {
            "apiVersion": "autotuner/v1",
            "kind": "Host",
            "metadata": {"name": "h"},
            "transport": {"type": "local"},
            "engine": {"name": name},
            "model": {"path": "/m"},
            **more,
        }
    )


def test_a_host_gets_its_engine() -> None:
    assert type(engine_for(host("sglang"))) is SglangEngine
    simulated = engine_for(host("sglang", simulate=PROFILE))
    assert type(simulated).__name__ == "SimulatedEngine"
    assert simulated.name


def test_vllm_comes_later() -> None:
    with pytest.raises(UsageError, match="vllm is not available") as caught:
        engine_for(host("vllm", simulate=PROFILE))
    assert caught.value.hint


def test_the_simulated_engine_is_loaded_only_where_it_is_used() -> None:
    script = "import sys, autotuner.engines.registry; print(any('simulated' in name for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"
