"""YAML 1.2 (core schema) on PyYAML's parser: every value keeps its place, and what readers disagree on is refused."""

from __future__ import annotations

import re
import stat
from pathlib import Path as FilePath
from typing import Any

import yaml

from autotuner.documents.scalars import UnclearScalarError, resolve
from autotuner.documents.source import Mark, Path, Source

MAX_BYTES = 512 * 1024
"""Size of a document; the largest that the project writes has some tens of kilobytes."""
MAX_DEPTH = 24
"""Mappings and lists inside each other."""
MAX_NODES = 50_000
"""Values of a document after its aliases are written out."""

_PLAIN, _QUOTED = "plain", "quoted"
_TEXT_TAG = "tag:yaml.org,2002:str"
_HARMLESS_TAGS = frozenset({_TEXT_TAG, "tag:yaml.org,2002:seq", "tag:yaml.org,2002:map"})


class _TooDeepError(yaml.MarkedYAMLError):
    """The document is nested beyond ``MAX_DEPTH``."""


class _Composer(yaml.BaseLoader):
    """Composes nodes; a scalar's tag says only whether it was quoted."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = 0

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else _QUOTED
        return str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise _TooDeepError(problem=f"nested deeper than {MAX_DEPTH} levels", problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def read(path: FilePath) -> Source:
    """The document in a file. What is wrong with the file itself or its YAML stands in ``problems``; then ``value`` may be ``None``."""
    source = Source(str(path))
    try:
        data = _bytes(path)
    except FileNotFoundError:
        source.report(Mark(1, 1), "there is no such file", "check the path, or lay out examples with: autotuner init")
    except IsADirectoryError:
        source.report(Mark(1, 1), "this is a folder, a file is needed", "name one of the .yaml files in it")
    except OSError as error:
        source.report(Mark(1, 1), f"the file cannot be read: {error.strerror}", f"look at its permissions with: ls -l {path}")
    else:
        if data is None:
            source.report(
                Mark(1, 1), "this is not a regular file but a pipe, a socket or a device", "save the document to a file, and name that"
            )
        else:
            _parse_bytes(source, data)
    return source


def _bytes(path: FilePath) -> bytes | None:
    """What a file holds, as far as it can be a document; ``None`` for what is no file and might never end, or never begin."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        return None
    with path.open("rb") as stream:
        return stream.read(MAX_BYTES + 1)


def parse(text: str, file: str = "<text>") -> Source:
    """The document in a text."""
    source = Source(file)
    _parse_bytes(source, text.encode())
    return source


def _parse_bytes(source: Source, data: bytes) -> None:
    if len(data) > MAX_BYTES:
        source.report(Mark(1, 1), f"the file is larger than {MAX_BYTES // 1024} KiB", "is it a document of autotuner?")
        return
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        at = Mark(before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1)
        source.report(at, f"byte 0x{data[error.start]:02x} is not UTF-8", "save the file as UTF-8")
        return
    node = _compose(source, text)
    if node is not None:
        _Reader(source).read(node)


def _compose(source: Source, text: str) -> yaml.Node | None:
    try:
        loader = _Composer(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        _report_syntax(source, error)
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        at = Mark(before.count("\n") + 1, error.position - (before.rfind("\n") + 1) + 1)
        source.report(at, f"the character U+{int(error.character):04X} is not allowed", "remove it")
    else:
        if node is None:
            source.report(Mark(1, 1), "the file is empty", "lay out examples with: autotuner init")
        return node
    return None


_SYNTAX = (
    (r"character '\\t'|found a tab", "a tab stands where YAML allows only spaces", "indent with spaces"),
    (r"single document", "a file holds one document, a second one starts here", "put it into a file of its own"),
    (r"undefined alias (.*)", "the alias {0} has no anchor before it", "quote the value if the * is part of it"),
    (r"duplicate anchor ('.*?')", "the anchor {0} is there twice", "give one of them another name"),
    (
        r"mapping values are not allowed",
        "a ':' is not expected here",
        "quote the value if the ':' is part of it, else check the indentation",
    ),
    (r"could not find expected ':'", "a key without ':'", "write 'key: value', with a space after the colon"),
    (r"character '[@`%]'", "a value cannot begin with this character", "quote the value"),
    (r"nested deeper than (.*)", "nested deeper than {0}", "is it a document of autotuner?"),
    (r"unexpected end of stream", "the quote of line {opened} is never closed", "close it"),
    (r"expected ',' or '\]'", "the list of line {opened} is not closed", "close it with ], and separate its items by commas"),
    (r"expected ',' or '\}'", "the mapping of line {opened} is not closed", "close it with }}, and separate its keys by commas"),
    (r"expected <block end>", "the indentation does not fit to the lines above", "align it with its neighbours"),
)


def _report_syntax(source: Source, error: yaml.MarkedYAMLError) -> None:
    mark = error.problem_mark or error.context_mark
    at = Mark(mark.line + 1, mark.column + 1) if mark else Mark(1, 1)
    opened = error.context_mark.line + 1 if error.context_mark else at.line
    for text in (error.problem, error.context):
        for pattern, message, hint in _SYNTAX:
            if match := re.search(pattern, text or ""):
                source.report(at, message.format(*match.groups(), opened=opened), hint.format())
                return
    source.report(at, f"not YAML: {error.problem or error}", "quote the value, or check the indentation")


class _Reader:
    """Turns nodes into values, notes their places and reports what is refused."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._nodes = 0
        self._open: list[yaml.Node] = []

    def read(self, root: yaml.Node) -> None:
        """Fill the source; its value is ``None`` when aliases blow the document up."""
        value = self._value(root, ())
        if self._nodes > MAX_NODES:
            message = f"the document has more than {MAX_NODES} values once its aliases are written out"
            self._source.report(_mark(root), message, "is it a document of autotuner?")
            return
        self._source.value = value

    def _value(self, node: yaml.Node, path: Path) -> object:
        self._nodes += 1
        self._source.values_at[path] = _mark(node)
        if self._nodes > MAX_NODES:
            return None
        if node in self._open:
            self._refuse(node, path, "the alias stands inside of its own anchor", "write the value out")
            return None
        if node.tag not in _HARMLESS_TAGS | {_PLAIN, _QUOTED}:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            self._refuse(node, path, f"the tag {tag} has no meaning here", "remove it")
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self._open.append(node)
        value: object = None
        if isinstance(node, yaml.SequenceNode):
            value = [self._value(item, (*path, index)) for index, item in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            value = self._mapping(node, path)
        self._open.pop()
        return value

    def _refuse(self, node: yaml.Node, path: Path, message: str, hint: str) -> None:
        self._source.report(_mark(node), message, hint)
        self._source.refused.add(path)

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> object:
        text = str(node.value)
        if node.start_mark.line == node.end_mark.line:
            self._source.text_offset[path] = 0 if node.style is None else 1
        if _half_character(text):
            self._refuse(node, path, "half of a surrogate pair is not a character", "write the character itself")
            return None
        if node.tag != _PLAIN:
            return text
        try:
            return resolve(text)
        except UnclearScalarError as error:
            self._refuse(node, path, error.message, error.hint)
            return None

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        values: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node)
            if key is None:
                continue
            at = (*path, key)
            if key in values:
                first = self._source.keys_at[at].line
                self._source.report(_mark(key_node), f"the key {key!r} is there twice, first in line {first}", "remove one of them")
                continue
            self._source.keys_at[at] = _mark(key_node)
            values[key] = self._value(value_node, at)
        return values

    def _key(self, node: yaml.Node) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self._source.report(_mark(node), "a key must be text, but this is a list or a mapping", "write one 'key: value' per line")
            return None
        text = str(node.value)
        if _half_character(text):
            self._source.report(_mark(node), "half of a surrogate pair is not a character", "write the character itself")
            return None
        if node.tag == _PLAIN and text == "<<":
            self._source.report(_mark(node), "merge keys (<<) are not part of YAML 1.2", "write the keys out")
            return None
        if node.tag == _PLAIN and not text:
            self._source.report(_mark(node), "a key is missing before ':'", "write 'key: value'")
            return None
        return text


def _mark(node: yaml.Node) -> Mark:
    return Mark(node.start_mark.line + 1, node.start_mark.column + 1)


def _half_character(text: str) -> bool:
    """Whether an escape left half of a surrogate pair, which no file can hold."""
    return any("\ud800" <= character <= "\udfff" for character in text)
