"""Asks a server of this machine over HTTP."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

LIMIT = 8 << 20
"""Bytes of a body that are read at most."""


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


def model_ids(body: str) -> list[str] | None:
    """Sorted ids of a ``/v1/models`` body; ``None`` when it is none."""
    try:
        return sorted(str(entry["id"]) for entry in json.loads(body)["data"])
    except (ValueError, KeyError, TypeError):
        return None
