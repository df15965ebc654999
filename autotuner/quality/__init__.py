"""The correctness gate: generated code in a sandbox, greedy equality with the baseline, a canary question."""

from __future__ import annotations
