"""Names: the checkpoints that a simulated host can name instead of folders."""

from __future__ import annotations

MODELS = ("simulated:kimi-k2.6",)
DRAFTERS = ("simulated:kimi-k2.6-dflash",)
