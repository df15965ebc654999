"""The endpoint: what an OpenAI-compatible URL serves, and what else it lets one see."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from autotuner.engines.exporters import EXPORTERS, Exporter, exporter_of
from autotuner.errors import AutotunerError, TransportError, UsageError
from autotuner.loadgen.control import ControlClient
from autotuner.model.near import near

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MODELS = "/v1/models"
METRICS = "/metrics"
FLUSHES: Mapping[str, str] = {"sglang": "/flush_cache", "vllm": "/reset_prefix_cache"}
"""What empties the prefix cache of an engine (POST); vLLM has it in its development mode only."""
EngineName = Literal["auto", "none", "sglang", "vllm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server as it was found."""

    base_url: str
    """Root of the API, without ``/v1`` and without a trailing slash."""
    model: str
    path: str = CHAT
    headers: tuple[tuple[str, str], ...] = ()
    engine: str | None = None
    """Whose counters are read; ``None`` where there are none."""
    context_length: int | None = None
    """Tokens of prompt and answer together, where the server says so."""
    notes: tuple[str, ...] = ()
    """What cannot be seen of it, a sentence each."""

    @property
    def exporter(self) -> Exporter | None:
        """How its metrics page is read."""
        return next((exporter for exporter in EXPORTERS.values() if exporter.engine == self.engine), None)

    @property
    def flush(self) -> str | None:
        """Path that empties its prefix cache."""
        return FLUSHES.get(self.engine or "")

    def check_room(self, contexts: Sequence[int], output_tokens: int) -> None:
        """Raises ``UsageError`` when a context and its answer are longer than what is served."""
        if self.context_length is None or not contexts or max(contexts) + output_tokens <= self.context_length:
            return
        fitting = [context for context in contexts if context + output_tokens <= self.context_length]
        raise UsageError(
            f"a context of {max(contexts)} and {output_tokens} output tokens do not fit the {self.context_length} tokens that is served",
            hint=f"--contexts {','.join(map(str, fitting))}" if fitting else "give smaller --contexts and --output-tokens",
        )


def root_of(url: str) -> str:
    """The root of an API, from what people paste: with or without ``/v1``, a path of it, or a slash. Raises ``UsageError``."""
    hint = "give something like http://127.0.0.1:8000"
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise UsageError(f"`{url}` is not a URL: {error}", hint=hint) from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"`{url}` is not the URL of an HTTP server", hint=hint)
    if parts.username or parts.password:
        raise UsageError(
            "a URL must not hold a password: it would stand in every record", hint="--api-key env:NAME keeps keys out of sight"
        )
    if parts.query or parts.fragment:
        raise UsageError(f"`{url}` has a query or a fragment, which an API's root cannot have", hint=hint)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.rstrip("/")
    for tail in (CHAT, TEXT, MODELS, "/v1"):
        path = path.removesuffix(tail)
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{path.rstrip('/')}"


def key_of(source: str) -> str:
    """The key that ``env:NAME`` or ``file:PATH`` leads to. Raises ``UsageError``; the key itself is in no message."""
    kind, _, where = source.partition(":")
    if kind == "env" and where:
        key = os.environ.get(where)
        if not key:
            raise UsageError(f"the environment variable {where} is not set", hint=f"export {where}=… first, in this shell")
    elif kind == "file" and where:
        try:
            key = Path(where).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the key file {where} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}") from error
    else:
        raise UsageError("a key is not given on the command line, where everybody can read it", hint="use env:NAME or file:PATH")
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(f"what {source} holds is not a key: it is empty or has characters that no header may have")
    return key


def open_endpoint(
    url: str,
    *,
    model: str | None = None,
    api_key: str | None = None,
    engine: EngineName = "auto",
    path: str = CHAT,
    timeout_s: float = 30.0,
) -> tuple[Endpoint, ControlClient]:
    """The endpoint behind ``url`` and a client for its control side, which the caller closes.

    ``api_key`` says where the key is. Without ``model`` the first of ``/v1/models`` is taken. Raises ``UsageError`` for arguments,
    ``TransportError`` when nothing answers there, and ``AutotunerError`` when what answers is no OpenAI-compatible server, or refuses.
    """
    base_url = root_of(url)
    headers = (("authorization", f"Bearer {key_of(api_key)}"),) if api_key else ()
    control = ControlClient(base_url, timeout_s, headers=dict(headers))
    try:
        served = _models(control, with_key=bool(headers))
        notes: list[str] = []
        chosen = _choose(base_url, None if served is None else tuple(served), model, notes)
        found = _engine(control, engine, notes)
        if base_url.startswith("https:"):
            notes.append("https: times are the client's own, since TLS hides when the kernel received a chunk")
        endpoint = Endpoint(
            base_url=base_url,
            model=chosen,
            path=path,
            headers=headers,
            engine=found,
            context_length=(served or {}).get(chosen),
            notes=tuple(notes),
        )
    except BaseException:
        control.close()
        raise
    return endpoint, control


def _models(control: ControlClient, *, with_key: bool) -> Mapping[str, int | None] | None:
    """The names that are served, with the tokens that each has room for; ``None`` where the server does not list them."""
    status, text, value = control.look(MODELS)
    where = f"{control.base_url}{MODELS}"
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        hint = "the key was refused: is it the one of this server?" if with_key else "give its key with --api-key env:NAME or file:PATH"
        raise AutotunerError(f"{where}: HTTP {status}: the server wants a key", hint=hint)
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED):
        return None
    if status != HTTPStatus.OK:
        raise AutotunerError(f"{where}: HTTP {status}: {' '.join(text[:200].split())}", hint="is the server ready? see its log")
    entries = value.get("data") if isinstance(value, Mapping) else None
    if not isinstance(entries, list):
        raise AutotunerError(
            f"{where}: the answer is no list of models: {' '.join(text[:80].split())!r}", hint="is this an OpenAI-compatible server?"
        )
    named = [entry for entry in entries if isinstance(entry, Mapping) and entry.get("id")]
    return {str(entry["id"]): room if isinstance(room := entry.get("max_model_len"), int) else None for entry in named}


def _choose(base_url: str, served: Sequence[str] | None, model: str | None, notes: list[str]) -> str:
    if served is None:
        if model is None:
            raise AutotunerError(
                f"{base_url}{MODELS}: the server does not list its models",
                hint="name one with --model, if this is an OpenAI-compatible server",
            )
        notes.append("the server does not list its models: that it has this one was not checked")
        return model
    if not served:
        raise AutotunerError(f"{base_url}{MODELS}: the server has no model", hint="load one, then start again")
    if model is None:
        return served[0]
    if model not in served:
        meant = near(model, served)
        hint = f"did you mean {meant}?" if meant else f"it serves {', '.join(served[:5])}"
        raise AutotunerError(f"{base_url} does not serve the model `{model}`", hint=hint)
    return model


def _engine(control: ControlClient, wanted: EngineName, notes: list[str]) -> str | None:
    """Whose counters can be read, by what the metrics page says."""
    if wanted == "none":
        return None
    exporter: Exporter | None = None
    with suppress(TransportError):
        status, text, _ = control.look(METRICS)
        exporter = exporter_of(text) if status == HTTPStatus.OK else None
    if wanted == "auto":
        if exporter is None:
            notes.append(
                "no counters: there is no metrics page of SGLang or vLLM (--enable-metrics), so acceptance is what answers say themselves"
            )
        return None if exporter is None else exporter.engine
    if exporter is None or exporter.engine != wanted:
        seen = "there is none" if exporter is None else f"it is one of {exporter.engine}"
        raise AutotunerError(
            f"{control.base_url}{METRICS} is no metrics page of {wanted}: {seen}",
            hint="start it with --enable-metrics, or use --engine none",
        )
    return wanted
