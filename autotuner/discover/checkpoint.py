"""Model and drafter: what a folder in the Hugging Face layout says about itself."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from autotuner.model.facts import DrafterFacts, ModelFacts, Weights

_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
_CONTEXTS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
_GIB = 1 << 30


def files_command(folder: str) -> tuple[str, ...]:
    """Names and sizes of the files of a folder; links are followed, because the Hugging Face cache is made of them."""
    return ("find", "-L", folder, "-maxdepth", "1", "-type", "f", "-printf", "%s\t%f\n")


def parse_files(text: str) -> dict[str, int]:
    """File name → bytes, from the output of ``files_command``."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        size, tab, name = line.partition("\t")
        if tab and size.isdecimal():
            found[name] = int(size)
    return found


def weight_files(files: Mapping[str, int]) -> dict[str, int]:
    """The files that are loaded: safetensors, else PyTorch's own. Copies in the vendor's format beside them are left out."""
    safetensors = {name: size for name, size in files.items() if name.endswith(".safetensors")}
    usual = {name: size for name, size in safetensors.items() if not name.startswith("consolidated")}
    return usual or safetensors or {name: size for name, size in files.items() if re.fullmatch(r"pytorch_model.*\.bin", name)}


def parse_config(text: str) -> dict[str, Any]:
    """A ``config.json``. Raises ``ValueError`` when it is not a JSON object."""
    config = json.loads(text)
    if not isinstance(config, dict):
        msg = f"an object is expected, {type(config).__name__} found"
        raise ValueError(msg)  # noqa: TRY004 - the same error for every malformed file
    return config


def model_facts(
    path: str, text: str, files: Mapping[str, int], context_length: int | None = None, *, weights: Weights | None = None
) -> ModelFacts:
    """Facts of a model from its ``config.json`` and its files; ``context_length`` is what the host serves, if that was said."""
    config = parse_config(text)
    part = _language(config)
    heads = _integer(part, "num_attention_heads")
    architectures = config.get("architectures")
    return ModelFacts(
        path=path,
        architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else None,
        layers=_integer(part, "num_hidden_layers"),
        heads=heads,
        kv_heads=_kv_heads(part, heads),
        hidden_size=_integer(part, "hidden_size"),
        experts=_first(part, _EXPERTS),
        vocab_size=_integer(part, "vocab_size"),
        context_max=context_length or _context(part),
        weights_gib=_weights_gib(files),
        digest=_digest(text, files),
        weights=weights,
    )


def drafter_facts(path: str, text: str, files: Mapping[str, int], *, weights: Weights | None = None) -> DrafterFacts:
    """Facts of a DFlash drafter; keys stand at the top or under ``dflash_config``, the latter counts."""
    config = parse_config(text)
    inner = config.get("dflash_config")
    part = {**config, **(inner if isinstance(inner, dict) else {})}
    layer_ids = part.get("target_layer_ids")
    dtype = config.get("torch_dtype") or config.get("dtype")
    return DrafterFacts(
        path=path,
        block_size=_integer(part, "block_size"),
        layers=_integer(config, "num_hidden_layers"),
        hidden_size=_integer(config, "hidden_size"),
        target_layers=_integer(part, "num_target_layers"),
        target_layer_ids=tuple(int(layer) for layer in layer_ids) if isinstance(layer_ids, list) else (),
        mask_token_id=_integer(part, "mask_token_id"),
        vocab_size=_integer(config, "vocab_size"),
        dtype=str(dtype) if dtype else None,
        weights_gib=_weights_gib(files),
        digest=_digest(text, files),
        weights=weights,
    )


def _language(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the language model of a multimodal checkpoint."""
    for key in ("text_config", "llm_config", "language_config"):
        inner = config.get(key)
        if isinstance(inner, dict) and "num_hidden_layers" in inner:
            return inner
    return config


def _kv_heads(part: Mapping[str, Any], heads: int | None) -> int | None:
    """Heads of the KV cache. With latent attention (MLA) one latent vector serves all heads, and every GPU holds it whole."""
    if _integer(part, "kv_lora_rank"):
        return 1
    return _integer(part, "num_key_value_heads") or heads


def _context(part: Mapping[str, Any]) -> int | None:
    """Longest context as the engine derives it: trained length times the scaling of positions not in it yet."""
    length = _first(part, _CONTEXTS)
    scaling = part.get("rope_scaling")
    if length is None or not isinstance(scaling, dict):
        return length
    factor = scaling.get("factor")
    kind = scaling.get("rope_type") or scaling.get("type")
    included = "original_max_position_embeddings" in scaling or kind == "llama3"
    return length if included or not isinstance(factor, int | float) else int(length * factor)


def _first(part: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    return next((value for value in (_integer(part, key) for key in keys) if value is not None), None)


def _integer(part: Mapping[str, Any], key: str) -> int | None:
    value = part.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _weights_gib(files: Mapping[str, int]) -> float | None:
    weights = weight_files(files)
    return round(sum(weights.values()) / _GIB, 3) if weights else None


def _digest(text: str, files: Mapping[str, int]) -> str:
    weights = sorted(weight_files(files).items())
    return "sha256:" + hashlib.sha256(json.dumps([text, weights]).encode()).hexdigest()[:16]
