"""What the host is told to restore, and the copy of it that stays on the controller."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from autotuner.deploy.lease import Lease
from autotuner.deploy.production import HostBefore
from autotuner.engines.base import Engine
from autotuner.model.host import Host
from autotuner.services.hostside import HostSide

_DIGEST_CHARS = 16
_SECRET_FLAG = re.compile(r"^--?[a-z0-9-]*(api-?key|secret|password|auth-?token|access-?token)", re.IGNORECASE)


def snapshot_of(host: Host, engine: Engine, host_side: HostSide, lease: Lease, before: HostBefore, *, ttl_s: float) -> dict[str, Any]:
    """Everything that the host's own restore needs to know."""
    return {
        "token": lease.token,
        "manager": host.service.manager,
        "holder": lease.holder,
        "leases": list(lease.paths),
        "state": host_side.state,
        "port": host.endpoint.port,
        "address": host.endpoint.address,
        "ready_path": engine.endpoints.ready,
        "models_path": engine.endpoints.models,
        "answered": before.production is not None and before.production.answered,
        "ttl_s": ttl_s,
        "stop_timeout_s": host.limits.stop_timeout_s,
        "ready_timeout_s": host.limits.ready_timeout_s,
        "production": before.recorded,
        "units": [dict(unit.details) for unit in before.units],
    }


def redacted(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """The same without secrets: environments as digests, values of secret-like flags left out, and no token of the session."""
    return {name: _redacted(name, value) for name, value in snapshot.items() if name != "token"}


def _redacted(name: str, value: object) -> object:
    if name == "env" and isinstance(value, Mapping):
        return {key: _digest(str(secret)) for key, secret in sorted(value.items())}
    if name == "argv" and isinstance(value, Sequence) and not isinstance(value, str):
        return _without_secrets([str(word) for word in value])
    if isinstance(value, Mapping):
        return {str(key): _redacted(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted("", inner) for inner in value]
    return value


def _without_secrets(argv: list[str]) -> list[str]:
    shown: list[str] = []
    hide = False
    for word in argv:
        flag, equals, _ = word.partition("=")
        secret = _SECRET_FLAG.match(flag) is not None
        shown.append("***" if hide else f"{flag}=***" if secret and equals else word)
        hide = secret and not equals
    return shown


def _digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]}"
