"""The code in an answer: out of Markdown with one fence, several or none, under any language tag, whole or cut off."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator

_FENCE = re.compile(r"^[ \t]*(?P<mark>`{3,}|~{3,})[^\n`]*\n(?P<code>.*?)(?:^[ \t]*(?P=mark)[`~]*[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_CODE_BEGINS = re.compile(r"^(?:def|async def|import|from|class|@)\b|^@", re.MULTILINE)
_THOUGHTS = re.compile(r"\A.*</think>", re.DOTALL)
_LONGEST = 200_000
"""No answer to a small problem has as many characters."""


def code_of(answer: str, function: str) -> str | None:
    """The code that defines ``function``, with what other blocks define for it; ``None`` when the answer has none that can be read.

    Of several definitions the first counts. Examples in other blocks are left out: they often stand before what they call.
    """
    text = _THOUGHTS.sub("", answer[:_LONGEST])
    blocks = [parsed for block in _blocks(text) if (parsed := _parse(block)) is not None]
    chosen = next((block for block in blocks if _defines(block, function)), None)
    if chosen is None:
        return None
    others = [node for block in blocks if block is not chosen for node in block.body if _is_definition(node) and not _named(node, function)]
    body = sorted([*others, *chosen.body], key=lambda node: not _is_future(node))
    try:
        return "\n".join(map(ast.unparse, body))
    except (RecursionError, ValueError):
        return None


def _blocks(text: str) -> Iterator[str]:
    fences = [match["code"] for match in _FENCE.finditer(text)]
    yield from fences
    if not fences:
        yield from _without_fence(text)


def _without_fence(text: str) -> Iterator[str]:
    """From each place where code may begin, as much as is code."""
    for begin in list(_CODE_BEGINS.finditer(text))[:20]:
        lines = text[begin.start() :].splitlines()
        for end in range(len(lines), 0, -1):
            if lines[end - 1].strip() and _parse("\n".join(lines[:end])) is not None:
                yield "\n".join(lines[:end])
                return


def _parse(code: str) -> ast.Module | None:
    """The code as a tree; with the indentation of a list item taken off. ``None`` when it is no Python."""
    lines = code.splitlines()
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    try:
        with warnings.catch_warnings(action="ignore"):  # about the answer's own mistakes
            return ast.parse("\n".join(line[margin:] for line in lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _defines(block: ast.Module, function: str) -> bool:
    return any(_named(node, function) for node in block.body)


def _named(node: ast.stmt, function: str) -> bool:
    if isinstance(node, ast.FunctionDef):
        return node.name == function
    return isinstance(node, ast.Assign) and any(isinstance(target, ast.Name) and target.id == function for target in node.targets)


def _is_definition(node: ast.stmt) -> bool:
    """Whether a statement only gives something a name: an import, a function, a class, a constant."""
    if isinstance(node, ast.Assign):
        try:
            ast.literal_eval(node.value)
        except (ValueError, TypeError, RecursionError):
            return False
        return True
    return isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef)


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"
