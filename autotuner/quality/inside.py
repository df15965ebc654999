"""Runs in the sandbox: calls one function of an answer and writes what it returned. It knows no expected value and judges nothing.

    inside.py MARK ANSWER.py CALLS.json

CALLS.json is ``{"function": NAME, "calls": [[ARG, …], …]}``. Standard output gets one line, ``MARK [{"value": …} | {"error": …}, …]``;
whatever the answer itself prints goes nowhere. Standard library of Python 3.8 only: the interpreter is the machine's.
"""

from __future__ import annotations

import json
import os
import sys

DEPTH = 60
"""No right value is nested as deep as this."""


def plain(value: object, depth: int = 0) -> object:
    """A value as JSON can carry it; ``{"other": TYPE}`` for what it cannot, so that it is equal to nothing."""
    if depth > DEPTH:
        return {"other": "too deep"}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (list, tuple)):
        return {"list": [plain(item, depth + 1) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[plain(key, depth + 1), plain(item, depth + 1)] for key, item in value.items()]}
    return {"other": type(value).__name__}


def said(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {str(error)[:200]}"


def results(source: str, function: str, calls: list[list[object]]) -> list[dict[str, object]]:
    """What each call returned. Code of the answer that fails beside the function, such as its own examples, does not matter."""
    names: dict[str, object] = {"__name__": "answer"}
    trouble = f"no function {function}"
    try:
        exec(compile(source, "answer.py", "exec"), names)  # noqa: S102 - this is what the sandbox is for
    except BaseException as error:  # noqa: BLE001 - also SystemExit: the answer may not end what judges it
        trouble = said(error)
    called = names.get(function)
    if not callable(called):
        return [{"error": trouble} for _ in calls]
    found: list[dict[str, object]] = []
    for arguments in calls:
        try:
            found.append({"value": plain(called(*arguments))})
        except BaseException as error:  # noqa: BLE001 - as above
            found.append({"error": said(error)})
    return found


def main(mark: str, answer: str, asked: str) -> None:
    """Run the calls and write one line."""
    with open(asked, encoding="utf-8") as file:  # noqa: PTH123 - pathlib would only cost time here
        wanted = json.load(file)
    with open(answer, encoding="utf-8") as file:  # noqa: PTH123
        source = file.read()
    out = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    line = f"\n{mark} {json.dumps(results(source, wanted['function'], wanted['calls']))}\n".encode()
    while line:
        line = line[os.write(out, line) :]
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
