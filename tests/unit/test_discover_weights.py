"""Headers of safetensors files: sizes and data types, and what is wrong with damaged ones."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotuner.discover import checkpoint, safetensors

DATA = Path(__file__).parents[1] / "data" / "discover"


def file(tensors: Mapping[str, object], *, body: int | None = None) -> bytes:
    """A file as the format's authors write it, with zeros for weights."""
    header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    ends = [tensor["data_offsets"][1] for tensor in tensors.values() if isinstance(tensor, dict) and "data_offsets" in tensor]
    return struct.pack("<Q", len(header)) + header + b"\0" * (max(ends, default=0) if body is None else body)


def tensor(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


WHOLE = file({"a": tensor("BF16", [2, 3], 0, 12), "b": tensor("F8_E4M3", [4], 12, 16), "scale": tensor("F32", [], 16, 20)})


class Folder:
    """Files by name, read as a transport reads them; remembers how much was asked for."""

    def __init__(self, **files: bytes) -> None:
        self.files = {f"{name.replace('_', '-')}.safetensors": content for name, content in files.items()}
        self.reads: list[tuple[str, int, int]] = []

    @property
    def sizes(self) -> dict[str, int]:
        return {name: len(content) for name, content in self.files.items()}

    def read(self, path: str, offset: int, limit: int) -> bytes:
        self.reads.append((path, offset, limit))
        return self.files[path.rpartition("/")[2]][offset : offset + limit]


def test_sizes_and_types_of_a_whole_file() -> None:
    header = safetensors.parse_header(WHOLE, len(WHOLE))
    assert header.bytes == 20
    assert header.elements == {"BF16": 6, "F8_E4M3": 4, "F32": 1}


def test_the_sum_of_all_files_is_read_from_their_headers_alone() -> None:
    folder = Folder(model_00001_of_00002=WHOLE, model_00002_of_00002=file({"c": tensor("BF16", [1 << 20], 0, 2 << 20)}))
    weights = safetensors.read_weights("/m", folder.sizes, folder.read)
    assert weights is not None
    assert (weights.files, weights.bytes, weights.problems) == (2, 20 + (2 << 20), ())
    assert weights.elements == {"BF16": 6 + (1 << 20), "F8_E4M3": 4, "F32": 1}
    assert weights.parameters == 11 + (1 << 20)
    assert [limit for _, _, limit in folder.reads] == [safetensors.FIRST_READ] * 2


def test_a_long_header_is_read_to_its_end_and_no_further() -> None:
    many = {f"layers.{index}.weight": tensor("BF16", [1], 2 * index, 2 * index + 2) for index in range(2000)}
    folder = Folder(model=file(many, body=1 << 20))
    weights = safetensors.read_weights("/m", folder.sizes, folder.read)
    assert weights is not None
    assert weights.elements == {"BF16": 2000}
    (_, _, first), (path, offset, rest) = folder.reads
    (length,) = struct.unpack("<Q", folder.files[path.rpartition("/")[2]][:8])
    assert offset + rest == 8 + length
    assert first == offset


def test_a_folder_without_safetensors_says_nothing() -> None:
    assert safetensors.read_weights("/m", {"pytorch_model.bin": 3}, Folder().read) is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file ends after 0 bytes"),
        (b"\x01\x00", "the file ends after 2 bytes"),
        (b"x" * 1024, "it is no safetensors file: its header would have"),
        (struct.pack("<Q", 0) + b"{}", "it is no safetensors file: its header would have 0 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\n", "it is no safetensors file"),
        (struct.pack("<Q", 400) + b'{"a": ', "it has 14 bytes, its header alone 408"),
        (struct.pack("<Q", 6) + b'{"a": ', "its header is no JSON"),
        (struct.pack("<Q", 2) + b"[]", "its header is no JSON object"),
        (WHOLE[:-1], f"it has {len(WHOLE) - 1} bytes of the {len(WHOLE)} that its header names"),
        (file({"a": {"dtype": "BF16", "shape": [-1], "data_offsets": [0, 2]}}), "its header is damaged at tensor 'a'"),
        (file({"a": {"dtype": 3}}), "its header is damaged at tensor 'a'"),
        (file({"a": "tensor"}), "its header is damaged at tensor 'a'"),
    ],
)
def test_damage_is_named_by_file(content: bytes, problem: str) -> None:
    folder = Folder(good=WHOLE, model=content)
    weights = safetensors.read_weights("/m", folder.sizes, folder.read)
    assert weights is not None
    (told,) = weights.problems
    assert told.startswith("model.safetensors: ")
    assert problem in told
    assert weights.elements == {"BF16": 6, "F8_E4M3": 4, "F32": 1}, "the whole file counts"


def test_files_that_are_missing_from_a_set_are_named() -> None:
    names = ["model-00001-of-00004.safetensors", "model-00003-of-00004.safetensors", "other.safetensors"]
    assert safetensors.missing_shards(names) == ("model-00002-of-00004.safetensors", "model-00004-of-00004.safetensors")
    folder = Folder(model_00002_of_00002=WHOLE)
    weights = safetensors.read_weights("/m", folder.sizes, folder.read)
    assert weights is not None
    assert weights.problems == ("1 files are missing: model-00001-of-00002.safetensors",)


def test_what_the_headers_say_does_not_change_the_digest() -> None:
    """Studies that exist were stored with digests of configuration, names and sizes."""
    text, files = (DATA / "config-gqa.json").read_text(), {"model.safetensors": len(WHOLE)}
    weights = safetensors.read_weights("/m", files, Folder(model=WHOLE).read)
    assert weights is not None
    assert checkpoint.model_facts("/m", text, files, weights=weights).digest == checkpoint.model_facts("/m", text, files).digest


@given(st.binary(max_size=200) | st.binary(max_size=100).map(lambda body: struct.pack("<Q", len(body)) + body), st.integers(0, 1000))
def test_any_bytes_are_a_header_or_a_value_error(content: bytes, size: int) -> None:
    with contextlib.suppress(ValueError):
        safetensors.parse_header(content, size)


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=6)
TENSORS = st.dictionaries(st.text(), JSON | st.fixed_dictionaries({"dtype": JSON, "shape": JSON, "data_offsets": JSON}))


@settings(max_examples=50)
@given(TENSORS)
def test_any_json_is_a_header_or_a_value_error(tensors: dict[str, object]) -> None:
    text = json.dumps(tensors).encode()
    with contextlib.suppress(ValueError):
        safetensors.parse_header(struct.pack("<Q", len(text)) + text, 1 << 40)
