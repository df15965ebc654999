"""SGLang: how it is probed, started, watched and understood."""

from __future__ import annotations

from autotuner.engines.sglang.engine import SglangEngine

__all__ = ["SglangEngine"]
