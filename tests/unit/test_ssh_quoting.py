"""No value can become a word of a shell: what is sent is a constant and words in an alphabet without meaning."""

from __future__ import annotations

import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner.errors import UsageError
from autotuner.transports.ssh.quoting import quoted

NASTY = st.text(alphabet=st.sampled_from("'\"\\$`!(){}[]*?~#&|;<>\n\r\t =+-%éx0\udc80"), max_size=30)
WORDS = st.lists(st.one_of(NASTY, st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))), min_size=1, max_size=6)


def decoded(word: str) -> bytes:
    """What the script on the host makes of a word."""
    if word.startswith("="):
        return word[1:].encode()
    return re.sub(rb"\\0([0-7]{3})", lambda match: bytes([int(match[1], 8)]), word[1:].encode())


def words(text: str) -> list[str]:
    """The words after the script and the token, as a POSIX shell splits them."""
    return shlex.split(text)[6:]


@given(argv=WORDS, values=st.lists(NASTY, max_size=3), cwd=st.none() | NASTY.map(lambda value: f"/{value}"))
def test_every_word_comes_back_as_it_was(argv, values, cwd) -> None:
    env = {f"V{number}": value for number, value in enumerate(values)}
    line = quoted(argv, env=env, cwd=cwd)
    expected = [cwd or "", str(len(env)), *(f"{name}={value}" for name, value in env.items()), *argv]
    assert [decoded(word) for word in words(line.text)] == [word.encode("utf-8", "surrogateescape") for word in expected]


@given(argv=WORDS)
def test_only_printable_ascii_is_sent_and_nothing_outside_quotes_has_a_meaning(argv) -> None:
    text = quoted(argv).text
    assert all(" " <= character <= "~" for character in text)
    constant, rest = text.split("' sh ", 1)
    assert constant == quoted(["x"]).text.split("' sh ", 1)[0]
    assert re.fullmatch(r"[0-9a-f]{32}( '[^'!]*')+", rest)
    assert "!" not in constant
    assert "\\" not in constant


def test_a_nul_byte_no_text_and_an_empty_command_are_refused() -> None:
    for argv in (["a\0b"], ["\ud800"], []):
        with pytest.raises(UsageError):
            quoted(argv)
    with pytest.raises(UsageError, match="NUL"):
        quoted(["a"], env={"A": "\0"})
    with pytest.raises(UsageError, match="NUL"):
        quoted(["a"], cwd="/\0")


def test_a_relative_folder_is_not_taken_for_an_option_or_the_folder_before() -> None:
    assert words(quoted(["a"], cwd="-").text)[0] == "=./-"


def test_every_command_line_is_found_by_a_token_of_its_own() -> None:
    first, second = quoted(["a"]), quoted(["a"])
    assert first.token in first.text
    assert first.token != second.token
