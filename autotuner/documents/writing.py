"""Documents as files: canonical YAML, written as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from autotuner import disk
from autotuner.documents.scalars import reads_as_text
from autotuner.documents.schemas import schema_file
from autotuner.model.document import Document

_WIDTH = 120
_FLOW_WIDTH = 90
"""Lists of scalars up to this many characters stand on one line."""


class _Dumper(yaml.SafeDumper):
    """Writes what both YAML 1.1 and 1.2 readers read back as the same value."""

    def ignore_aliases(self, data: Any) -> bool:
        """Equal parts are written out, never as anchors."""
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: FBT001, FBT002 - PyYAML's signature
        """Items of a list are indented below their key."""
        super().increase_indent(flow, indentless=False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    lines = value.split("\n")
    if len(lines) > 2 and all(line.isprintable() for line in lines):
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|")
    if not value.isprintable():  # escaped: written as it is, a line break of any kind would be folded
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"')
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if reads_as_text(value) else "'")


def _list(dumper: yaml.SafeDumper, value: list[Any]) -> yaml.SequenceNode:
    short = all(not isinstance(item, dict | list) for item in value) and sum(len(str(item)) + 2 for item in value) <= _FLOW_WIDTH
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=short)


def _float(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:float", _decimal(value))


def _decimal(value: float) -> str:
    """Shortest text that reads back as the same float; with a dot, which YAML 1.1 readers need in front of an exponent."""
    text = repr(value)
    return text.replace("e", ".0e") if "." not in text and "e" in text else text


_Dumper.add_representer(str, _text)
_Dumper.add_representer(list, _list)
_Dumper.add_representer(float, _float)


def dump(document: Document) -> str:
    """Canonical YAML of a document: keys in the order of its model, defaults left out except in a recommendation, which says everything."""
    recommendation = document.kind == "Recommendation"
    values = document.model_dump(mode="json", by_alias=True, exclude_defaults=not recommendation)
    schemas = "../../schemas" if recommendation else "../schemas"
    head = f"# yaml-language-server: $schema={schemas}/{schema_file(document.kind)}\n"
    return head + yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH)


def write(document: Document, path: str | Path) -> None:
    """Write a document's canonical YAML. Raises ``AutotunerError`` when the disk is full or the folder cannot be written."""
    write_text(Path(path), dump(document))


def write_text(path: Path, text: str) -> None:
    """Write a file atomically and make the folders above it; a symbolic link keeps pointing to its file.

    Raises ``AutotunerError``; then the file is as it was.
    """
    target = Path(os.path.realpath(path))
    with disk.refusals("write", path):
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
        disk.replace(target, text.encode(), mode=mode)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
