"""The text of a recommended unit. That systemd reads it back so is shown on a booted host, in ``tests/hosts/test_recommended_units.py``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner.decide.recommend import _conflicts
from autotuner.decide.unit import read_conflicts, read_folder, render_unit
from autotuner.model.host import ProductionUnit, Service
from tests import builders as b

PRINTABLE = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cn"), include_characters="\n\t"), max_size=40)
FOLDERS = st.lists(
    st.text(st.characters(exclude_categories=("Cs", "Cc", "Cn"), exclude_characters="/"), min_size=1, max_size=10).filter(
        lambda part: part not in {".", ".."}
    ),
    max_size=3,
).map(lambda parts: "/" + "/".join(parts))


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


def unit(**changes):
    return render_unit(**{"description": "d", "argv": ("/bin/server",), "env": {}, "cwd": "/", **changes})


@given(value=PRINTABLE)
def test_no_value_adds_a_directive_and_every_value_is_read_back(value):
    text = unit(description=value, argv=("/bin/server", value), env={"NAME": value})
    directives = [line.split("=")[0] for line in text.split("\n") if "=" in line and not line.startswith(" ")]
    assert directives == [
        "Description", "After", "Wants", "Environment", "WorkingDirectory", "ExecStart",
        "KillMode", "TimeoutStopSec", "Restart", "StandardOutput", "StandardError", "WantedBy",
    ]  # fmt: skip
    environment = next(line for line in text.split("\n") if line.startswith("Environment=")).removeprefix("Environment=")
    assert unquote(environment, dollar=False) == f"NAME={value}"
    command = text.split("ExecStart=")[1].split("\nKillMode")[0].replace(" \\\n    ", " ")
    assert unquote(command.removeprefix("/bin/server "), dollar=True) == value


@given(folder=FOLDERS)
def test_the_folder_is_read_back(folder):
    text = unit(cwd=folder)
    assert read_folder(text) == folder
    (line,) = [line for line in text.split("\n") if line.startswith("WorkingDirectory=")]
    assert not line.endswith((" ", "\\"))


def test_each_flag_stands_on_its_own_line_with_its_values():
    text = unit(argv=("/bin/server", "--tp-size", "8", "--bs", "1", "2", "--off"))
    assert "ExecStart=/bin/server \\\n    --tp-size 8 \\\n    --bs 1 2 \\\n    --off\n" in text


def test_a_dollar_in_the_programs_own_path_switches_variables_off_for_the_whole_line():
    assert 'ExecStart=:"/opt/$A/server" \\\n    "$B"\n' in unit(argv=("/opt/$A/server", "$B"))


def test_units_in_conflict_are_stopped_before_it_starts():
    text = unit(conflicts=("prod.service", "other@1.service"))
    assert "\nConflicts=prod.service other@1.service\nAfter=network-online.target prod.service other@1.service\n" in text
    assert read_conflicts(text) == ("prod.service", "other@1.service")
    assert read_conflicts(unit()) == ()


def test_a_recommended_unit_conflicts_with_production_and_with_what_is_stopped_for_the_night():
    service = Service(manager="systemd", production=ProductionUnit(unit="prod"), conflicts=("other.service",))
    assert _conflicts(b.host(service=service)) == ("prod.service", "other.service")
    assert _conflicts(b.host()) == ()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"argv": ("/bin/server", "a\x00b")}, "control character"),
        ({"argv": ("/bin/server", "a\x7fb")}, "control character"),
        ({"argv": ("/bin/server", "a\ud800b")}, "no character of Unicode"),
        ({"argv": ("/bin/server", "a\uffffb")}, "no character of Unicode"),
        ({"env": {"NAME": "a\udfff"}}, "no character of Unicode"),
        ({"description": "a\rb"}, "control character"),
        ({"argv": ()}, "no program"),
        ({"argv": ("",)}, "neither a name nor an absolute path"),
        ({"argv": ("bin/server",)}, "neither a name nor an absolute path"),
        ({"argv": ("/bin/",)}, "neither a name nor an absolute path"),
        ({"argv": ("-server",)}, "has a meaning to systemd"),
        ({"argv": ("/bin/a'b",)}, "a quote, a backslash"),
        ({"env": {"A B": "x"}}, "environment variable"),
        ({"env": {"A\n": "x"}}, "environment variable"),
        ({"cwd": "srv"}, "plain absolute path"),
        ({"cwd": "/srv/../etc"}, "plain absolute path"),
        ({"cwd": "/srv\nExecStartPre=/bin/id"}, "plain absolute path"),
        ({"conflicts": ("a.service\nExecStart=/bin/id",)}, "not the name of a unit"),
        ({"conflicts": ("a b.service",)}, "not the name of a unit"),
        ({"argv": ("/bin/server", *["x" * 100_000] * 11)}, "longer than 1 MiB"),
    ],
)
def test_what_no_unit_file_can_hold_is_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        unit(**changes)
