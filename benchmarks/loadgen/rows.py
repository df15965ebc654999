"""What is compared: a request by a client's own account, and by the server's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.loadgen.handle import Truth


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A request, by a client's own account or by the server's."""

    ok: bool
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    tokens: int | None

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Row:
        """From a driver's report."""
        return cls(**{name: raw.get(name) for name in ("ok", "ttft_s", "tpot_s", "e2e_s", "tokens")})

    @classmethod
    def true(cls, truth: Truth) -> Row:
        """What the server did."""
        known = bool(truth.chunks)
        several = known and truth.chunks[-1][2] > truth.chunks[0][2]
        return cls(
            ok=truth.outcome == "sent",
            ttft_s=truth.ttft_s if known else None,
            tpot_s=truth.tpot_s if several else None,
            e2e_s=truth.e2e_s if known else None,
            tokens=truth.tokens,
        )
