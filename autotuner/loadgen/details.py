"""Whether a server will say of each answer what its speculation did: asked for only where it is known to be understood."""

from __future__ import annotations

from collections.abc import Mapping

from autotuner.errors import TransportError
from autotuner.loadgen.control import ControlClient

ASK = "return_spec_tokens_details"
"""SGLang's word for it, from 0.5.18 on. Older builds pass over it, others may refuse a word that they do not know."""
_TOKENS = 8
"""Enough for a verification step to be counted."""


def tells_speculation(control: ControlClient, *, model: str, chat_path: str) -> bool:
    """Whether this server, asked for it, says how many verification steps an answer took. One short request; never raises."""
    body: Mapping[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": "Count from one to ten."}],
        "max_tokens": _TOKENS,
        "temperature": 0,
        ASK: True,
    }
    try:
        answer = control.post_json(chat_path, body)
    except TransportError:
        return False
    extension = answer.get("sglext") if isinstance(answer, dict) else None
    details = extension.get("spec_tokens_details") if isinstance(extension, dict) else None
    return isinstance(details, dict) and bool(details.get("spec_verify_ct"))
