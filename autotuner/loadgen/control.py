"""The control side: health, information, metrics and cache of a server, over ordinary httpx; and what httpx's errors mean here."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

import httpx

from autotuner.errors import TransportError

HTTPX_ERRORS = (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, httpx.CookieConflict)
"""The roots of everything that httpx raises."""

ERROR_CLASSES: tuple[tuple[type[Exception], str], ...] = (
    (httpx.ReadTimeout, "stalled"),
    (httpx.TimeoutException, "connection"),
    (httpx.RemoteProtocolError, "malformed"),
    (httpx.DecodingError, "malformed"),
    (httpx.TooManyRedirects, "malformed"),
    (httpx.HTTPStatusError, "http"),
    (httpx.TransportError, "connection"),
    (httpx.HTTPError, "connection"),
    (httpx.StreamError, "malformed"),
    (httpx.InvalidURL, "url"),
    (httpx.CookieConflict, "malformed"),
)
"""The class of a failed request by exception of httpx; the first that fits."""


def error_class(error: Exception) -> str:
    """How a request that ended with this exception of httpx is counted."""
    return next(name for kind, name in ERROR_CLASSES if isinstance(error, kind))


def as_transport_error(error: Exception, what: str) -> TransportError:
    """The project's error for an exception of httpx; ``what`` was being done."""
    return TransportError(f"{what}: {error or type(error).__name__} ({error_class(error)})", hint="is the server still up? see its log")


class ControlClient:
    """Talks to a server beside the load. ``base_url`` is ``http://address:port``; every call takes ``timeout_s`` at most.

    ``transport`` is another way to it than TCP from this machine; it is closed with the client. ``headers`` go with every call.
    """

    def __init__(
        self,
        base_url: str,
        timeout_s: float = 10,
        transport: httpx.BaseTransport | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        try:
            # The server under test is addressed directly, whatever proxies the user's environment names.
            # Connections are not kept: servers close idle ones after a few seconds, and the request that meets that is lost.
            limits = httpx.Limits(max_keepalive_connections=0)
            # Authorities of one's own (SSL_CERT_FILE) count, though, as they do for the load.
            verify = httpx.create_ssl_context() if self.base_url.startswith("https:") else True
            self._client = httpx.Client(
                base_url=self.base_url,
                timeout=timeout_s,
                trust_env=False,
                verify=verify,
                limits=limits,
                transport=transport,
                headers=headers,
            )
        except HTTPX_ERRORS as error:
            raise as_transport_error(error, f"address {base_url}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def status(self, path: str) -> int | None:
        """Status of a GET, or ``None`` when there is no answer. Never raises."""
        try:
            return self._client.get(path).status_code
        except HTTPX_ERRORS:
            return None

    def look(self, path: str) -> tuple[int, str, object]:
        """Status, body and, where it is JSON, value of a GET, success or not. Raises ``TransportError`` when there is no answer."""
        try:
            answer = self._client.get(path)
        except HTTPX_ERRORS as error:
            raise as_transport_error(error, f"GET {self.base_url}{path}") from error
        try:
            return answer.status_code, answer.text, answer.json()
        except ValueError:
            return answer.status_code, answer.text, None

    def get_text(self, path: str) -> str:
        """Body of a GET. Raises ``TransportError`` when there is no answer or it is not a success."""
        return self._ask("GET", path).text

    def get_json(self, path: str) -> object:
        """JSON of a GET. Raises ``TransportError``, also when the body is not JSON."""
        return _json(self._ask("GET", path))

    def post(self, path: str) -> int:
        """Status of a POST without body. Raises ``TransportError`` when there is no answer."""
        try:
            return self._client.post(path).status_code
        except HTTPX_ERRORS as error:
            raise as_transport_error(error, f"POST {self.base_url}{path}") from error

    def post_json(self, path: str, body: Mapping[str, object]) -> object:
        """JSON of a POST of JSON. Raises ``TransportError`` when there is no answer, no success or no JSON."""
        return _json(self._ask("POST", path, body))

    def _ask(self, method: str, path: str, body: Mapping[str, object] | None = None) -> httpx.Response:
        try:
            answer = self._client.request(method, path, json=body)
        except HTTPX_ERRORS as error:
            raise as_transport_error(error, f"{method} {self.base_url}{path}") from error
        if not answer.is_success:
            raise TransportError(f"{method} {self.base_url}{path}: HTTP {answer.status_code}: {answer.text[:300]}")
        return answer


def _json(answer: httpx.Response) -> object:
    try:
        return answer.json()
    except ValueError as error:
        raise TransportError(f"{answer.request.method} {answer.request.url}: the answer is not JSON: {answer.text[:80]!r}") from error
