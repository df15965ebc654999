from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner.decide.unit import render_unit

PRINTABLE = st.text(st.characters(exclude_categories=("Cs", "Cc"), include_characters="\n\t"), max_size=40)


def unquote(word, *, dollar):
    """What systemd makes of one double-quoted or bare word (systemd.syntax(7), specifiers and variables doubled)."""
    if not word.startswith('"'):
        return word
    out, index, body = "", 0, word[1:-1]
    while index < len(body):
        pair = body[index : index + 2]
        escapes = {"\\\\": "\\", '\\"': '"', "\\n": "\n", "\\t": "\t", "%%": "%"} | ({"$$": "$"} if dollar else {})
        out += escapes.get(pair, body[index])
        index += 2 if pair in escapes else 1
    return out


@given(value=PRINTABLE)
def test_no_value_adds_a_directive_and_every_value_is_read_back(value):
    text = render_unit(description=value, argv=("/bin/server", value), env={"NAME": value}, cwd="/")
    directives = [line.split("=")[0] for line in text.splitlines() if "=" in line and not line.startswith(" ")]
    assert directives == [
        "Description", "After", "Wants", "Environment", "WorkingDirectory", "ExecStart",
        "KillMode", "TimeoutStopSec", "Restart", "StandardOutput", "StandardError", "WantedBy",
    ]  # fmt: skip
    environment = next(line for line in text.split("\n") if line.startswith("Environment=")).removeprefix("Environment=")
    assert unquote(environment, dollar=False) == f"NAME={value}"
    command = text.split("ExecStart=")[1].split("\nKillMode")[0].replace(" \\\n    ", " ")
    assert unquote(command.removeprefix("/bin/server "), dollar=True) == value


def test_each_flag_stands_on_its_own_line_with_its_values():
    text = render_unit(description="d", argv=("/bin/server", "--tp-size", "8", "--bs", "1", "2", "--off"), env={}, cwd="/")
    assert "ExecStart=/bin/server \\\n    --tp-size 8 \\\n    --bs 1 2 \\\n    --off\n" in text


def test_a_control_character_is_refused():
    with pytest.raises(ValueError, match="control character"):
        render_unit(description="d", argv=("/bin/server", "a\x00b"), env={}, cwd="/")
