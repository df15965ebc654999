"""Asks a server of this machine over HTTP."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

LIMIT = 8 << 20
"""Bytes of a body that are read at most."""
_PROBE_TIMEOUT_S = 25.0


def http(request: dict[str, Any]) -> dict[str, Any]:
    """Ask ``{method, url, body, timeout_s}``; ``{status, headers, body}``, or an error of kind ``connection``."""
    parts = urlsplit(request["url"])
    if parts.scheme != "http" or not parts.hostname:
        return {"error": f"{request['url']}: only http:// can be asked", "kind": "url"}
    import http.client  # noqa: PLC0415 - a fifth of the time of every command that does not need it

    connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=float(request["timeout_s"]))
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    body = request.get("body")
    try:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        connection.request(request["method"], path, None if body is None else body.encode(), headers)
        answer = connection.getresponse()
        content = answer.read(LIMIT)
        return {"status": answer.status, "headers": dict(answer.getheaders()), "body": content.decode(errors="replace")}
    except (OSError, http.client.HTTPException) as error:
        return {"error": f"{request['url']}: {error or type(error).__name__}", "kind": "connection"}
    finally:
        connection.close()


def base_url(request: dict[str, Any]) -> str:
    """Where ``{address, port}`` is reached from the machine itself."""
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(request["address"], request["address"])  # noqa: S104 - compared, not bound
    return f"http://{f'[{address}]' if ':' in address else address}:{request['port']}"


def answers(request: dict[str, Any], timeout_s: float = _PROBE_TIMEOUT_S) -> bool:
    """Whether ``{address, port, ready_path}`` says 200."""
    asked = {"method": "GET", "url": base_url(request) + request["ready_path"], "timeout_s": timeout_s}
    return bool(http(asked).get("status") == 200)


def models(request: dict[str, Any]) -> list[str] | None:
    """Sorted ids of the models that ``{address, port, models_path}`` lists; ``None`` when it lists none."""
    if not request.get("models_path"):
        return None
    reply = http({"method": "GET", "url": base_url(request) + request["models_path"], "timeout_s": _PROBE_TIMEOUT_S})
    return model_ids(reply.get("body", "")) if reply.get("status") == 200 else None


def model_ids(body: str) -> list[str] | None:
    """Sorted ids of a ``/v1/models`` body; ``None`` when it is none."""
    try:
        return sorted(str(entry["id"]) for entry in json.loads(body)["data"])
    except (ValueError, KeyError, TypeError):
        return None
