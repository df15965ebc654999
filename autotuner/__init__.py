"""autotuner finds, overnight, the serving configuration that is best for each workload on a GPU host."""

from __future__ import annotations

__version__ = "0.1.0"
