"""Every file under tests/data/documents has beside it (.txt) exactly what is said about it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotuner.documents import check_file

FOLDER = Path(__file__).parent.parent / "data" / "documents"


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.yaml")), ids=lambda file: file.stem)
def test_what_is_said_about_a_file(file: Path) -> None:
    said = [str(problem).replace(str(file), file.name) for problem in check_file(file)]
    assert said == _messages(file.with_suffix(".txt").read_text(encoding="utf-8"), file.name)


def _messages(text: str, name: str) -> list[str]:
    messages: list[str] = []
    for line in text.splitlines():
        if line.startswith(name):
            messages.append(line)
        else:
            messages[-1] += "\n" + line
    return messages


def test_every_mistake_of_a_file_is_found_at_once() -> None:
    assert len(check_file(FOLDER / "host-many.yaml")) == 16


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "there is no such file"),
        (lambda path: path.mkdir(), "this is a folder, a file is needed"),
        (lambda path: path.write_bytes(b"a: 1\n" * 200_000), "the file is larger than 512 KiB"),
        (lambda path: path.write_bytes(b"\xff\xfea\x00"), "byte 0xff is not UTF-8"),
        (os.mkfifo, "this is not a regular file but a pipe, a socket or a device"),
        (lambda path: path.symlink_to("/dev/zero"), "this is not a regular file but a pipe, a socket or a device"),
        (lambda path: path.symlink_to(path), "the file cannot be read: Too many levels of symbolic links"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_problem(tmp_path: Path, make, message: str) -> None:
    path = tmp_path / "host.yaml"
    make(path)
    (problem,) = check_file(path)
    assert problem.message == message
    assert (problem.file, problem.line, problem.severity) == (str(path), 1, "error")
    assert problem.hint


def test_an_empty_path_is_said_to_be_empty() -> None:
    (problem,) = check_file("")
    assert problem.message == "the path is empty"
