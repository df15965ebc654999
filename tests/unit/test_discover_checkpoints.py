from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner.discover import checkpoint
from autotuner.discover.ports import looks_like_engine, shown
from autotuner.model.host import Host
from autotuner.services.onhost.sockets import parse_listeners

DATA = Path(__file__).parents[1] / "data" / "discover"


def data(name: str) -> str:
    return (DATA / name).read_text()


def test_listeners_of_both_families() -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    lines = (
        "   0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1 0 100 0 0 10 0\n"
        "   1: 0100007F:7530 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 112 1 0 100 0 0 10 0\n"
        "   2: 00000000000000000000000000000000:7530 00000000000000000000000000000000:0000 0A 0:0 00:0 0     0        0 113 1\n"
    )
    assert parse_listeners(head + lines) == {30000: {"111", "113"}}
    assert parse_listeners("") == {}


def test_latent_attention_has_one_kv_head_and_its_scaling_is_included() -> None:
    facts = checkpoint.model_facts("/m", data("config-mla-moe.json"), {"model-1.safetensors": 1 << 30, "model-2.safetensors": 1 << 29})
    assert (facts.architecture, facts.layers, facts.heads, facts.kv_heads, facts.experts) == ("DeepseekV3ForCausalLM", 61, 64, 1, 384)
    assert facts.context_max == 262144
    assert facts.weights_gib == 1.5


def test_the_language_part_of_a_multimodal_model_counts() -> None:
    facts = checkpoint.model_facts("/m", data("config-nested.json"), {})
    assert (facts.architecture, facts.layers, facts.hidden_size) == ("KimiK25ForConditionalGeneration", 61, 7168)
    assert facts.weights_gib is None


def test_grouped_attention_and_a_served_context() -> None:
    facts = checkpoint.model_facts("/m", data("config-gqa.json"), {}, 4096)
    assert (facts.heads, facts.kv_heads, facts.experts, facts.context_max) == (9, 3, None, 4096)
    assert checkpoint.model_facts("/m", data("config-gqa.json"), {}).context_max == 8192


@pytest.mark.parametrize(
    ("scaling", "context"),
    [({"type": "linear", "factor": 4.0}, 4000), ({"rope_type": "llama3", "factor": 8.0}, 1000), ({"rope_type": "default"}, 1000)],
)
def test_scaled_positions(scaling: dict[str, object], context: int) -> None:
    text = json.dumps({"max_position_embeddings": 1000, "rope_scaling": scaling})
    assert checkpoint.model_facts("/m", text, {}).context_max == context


def test_drafter() -> None:
    facts = checkpoint.drafter_facts("/d", data("config-drafter.json"), {"model.safetensors": 38 << 20})
    assert (facts.block_size, facts.mask_token_id, facts.target_layers, facts.target_layer_ids) == (8, 5, 30, (1, 8, 15, 22, 28))
    assert (facts.layers, facts.hidden_size, facts.vocab_size, facts.dtype) == (5, 576, 49152, "bfloat16")


def test_the_digest_follows_configuration_and_weights_only() -> None:
    text, files = data("config-gqa.json"), {"model.safetensors": 10, "README.md": 1}
    digest = checkpoint.model_facts("/m", text, files).digest
    assert checkpoint.model_facts("/elsewhere", text, {**files, "README.md": 2}).digest == digest
    assert checkpoint.model_facts("/m", text, {**files, "model.safetensors": 11}).digest != digest
    assert checkpoint.model_facts("/m", text + " ", files).digest != digest


def test_which_files_are_weights() -> None:
    assert checkpoint.weight_files({"consolidated.safetensors": 1, "model-1.safetensors": 2, "pytorch_model.bin": 3}) == {
        "model-1.safetensors": 2
    }
    assert checkpoint.weight_files({"pytorch_model-1.bin": 3, "training_args.bin": 1}) == {"pytorch_model-1.bin": 3}
    assert checkpoint.parse_files("12\ta b.safetensors\nx\tno\n\n") == {"a b.safetensors": 12}


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_damaged_configurations(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        checkpoint.model_facts("/m", text, {})


KEYS = st.sampled_from(["num_hidden_layers", "num_attention_heads", "rope_scaling", "text_config", "architectures"])


@given(st.dictionaries(KEYS, st.none() | st.text() | st.integers() | st.lists(st.integers()) | st.booleans()))
def test_any_json_object_is_a_model(config: dict[str, object]) -> None:
    checkpoint.model_facts("/m", json.dumps(config), {})


HOST = Host.model_validate(
    {
        "apiVersion": "autotuner/v1",
        "kind": "Host",
        "metadata": {"name": "h"},
        "transport": {"type": "local"},
        "engine": {"name": "sglang"},
        "model": {"path": "/m"},
    }
)


@pytest.mark.parametrize(
    ("argv", "is_engine"),
    [
        (["python3", "-m", "sglang.launch_server", "--port", "1"], True),
        (["/opt/venv/bin/python3.12", "-u", "-m", "sglang.launch_server"], True),
        (["/opt/venv/bin/python", "/opt/venv/bin/sglang", "serve"], True),
        (["sglang", "serve"], True),
        (["python", "-m", "autotuner.engines.simulated", "--simulate", "{}"], True),
        (["nginx", "-c", "/etc/sglang.conf"], False),
        (["sshd: /usr/sbin/sshd -D"], False),
        (["python3", "-m", "http.server", "--directory", "/opt/sglang"], False),
        (["python3", "-m", "vllm.entrypoints.openai.api_server"], False),
        (["python3"], False),
        ([], False),
    ],
)
def test_what_looks_like_the_engine(argv: list[str], is_engine: bool) -> None:  # noqa: FBT001 - a table of cases
    assert looks_like_engine(argv, HOST) is is_engine


def test_shown_is_short_and_printable() -> None:
    assert shown(["a", "b\nc"]) == "a 'b\\nc'"
    assert len(shown(["x" * 1000])) < 200
