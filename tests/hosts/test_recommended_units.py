"""What a recommended unit says is what its program is given: systemd itself reads it and starts it, on a booted host."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from autotuner.decide.unit import render_unit
from tests.hosts.machine import Machine

pytestmark = pytest.mark.host

READER = Path(__file__).with_name("read_units.py")
PROGRAM = "/opt/held/server"
WAITS = ("-ISc", "import time\ntime.sleep(600)")
"""Makes a python wait, whatever other arguments it is given."""

HOSTILE = (
    "quote \" and '", "'", '"', "back\\slash", "\\", "\\\\", "ends in \\", "\\x41 \\u0041 \\101 \\n", "$VAR", "${VAR}", "$$", "$", "a$$b",
    "%h %% %n", "%", "%%", "new\nline", "x\nExecStartPre=/bin/touch /var/owned", "\n[Service]\nUser=nobody", "tab\there", ";",
    " ; /bin/touch /var/owned", "a ; b", "  leads and trails  ", "", "-@+!:", "-", "@", "+", "!", ":", "--flag=$VAR", "#comment",
    "; comment", "ünïcödé 日本 🦆", "\u0085", "\u2028", "\u00a0", "\ufeff", "~", "*?[a]", "`id`", "$(id)", "|&<>", "x" * 100_000,
)  # fmt: skip
FOLDERS = (
    "/srv/a b",
    "/srv/a  b  ",
    "/srv/x\\",
    "/srv/\\x41",
    "/srv/%h",
    "/srv/$VAR",
    '/srv/"q"',
    "/srv/'",
    "/srv/~",
    "/srv/é",
    "/srv/;x #y",
)
PROGRAMS = ("/opt/held/a b", "/opt/held/a$VAR", "/opt/held/${VAR}", "/opt/held/%h", "/opt/held/;", "/opt/held/-é", "/opt//held///server")

TEXT = st.text(
    st.one_of(
        st.sampled_from("\\\"'$%{};#-@+!:=~ \t\nhnVAR"),
        st.characters(exclude_categories=("Cs", "Cc", "Cn"), codec="utf-8"),
    ),
    max_size=30,
)
FOLDER = TEXT.map(lambda text: "/srv/" + text.translate(str.maketrans("/\n\t", "___")).strip(".")).filter(
    lambda path: len(path.encode()) < 200
)


@dataclass(frozen=True)
class Case:
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str = "/"
    description: str = ""

    @property
    def unit(self) -> str:
        return render_unit(description=self.description, argv=self.argv, env=self.env, cwd=self.cwd)


CASES = st.builds(
    Case,
    argv=st.lists(TEXT, max_size=4).map(lambda words: (PROGRAM, *WAITS, *words)),
    env=st.dictionaries(st.from_regex(r"AT_[A-Za-z0-9_]{1,8}", fullmatch=True), TEXT, max_size=3),
    cwd=FOLDER,
    description=TEXT,
)


def check(machine: Machine, cases: list[Case]) -> None:
    """Start all of them and compare byte for byte what their programs have with what was asked for."""
    named = {f"held-{index}.service": case for index, case in enumerate(cases)}
    request = {
        "folders": [case.cwd for case in cases],
        "programs": [case.argv[0] for case in cases],
        "units": {name: case.unit for name, case in named.items()},
    }
    reply = json.loads(machine.run(["/usr/bin/python3", str(READER)], stdin=json.dumps(request), timeout_s=120).stdout)
    assert reply["verify"] == {"code": 0, "said": ""}
    for name, case in named.items():
        found = reply["given"][name]
        assert "error" not in found, (case, found)
        env = [base64.b64decode(item) for item in found["env"]]
        assert [base64.b64decode(word) for word in found["argv"]] == [word.encode() for word in case.argv], case.unit[:2000]
        assert [f"{key}={value}".encode() in env for key, value in case.env.items()] == [True] * len(case.env), case.unit[:2000]
        assert base64.b64decode(found["cwd"]) == (case.cwd.rstrip("/") or "/").encode(), case.unit[:2000]
    assert not machine.exists("/var/owned")


def test_hostile_values_reach_the_program_as_they_are(machine: Machine):
    spoiled = {"VAR": "was expanded"}
    values = [Case((PROGRAM, *WAITS, value, "-f", value, value), {**spoiled, "AT": value}, description=value[:500]) for value in HOSTILE]
    folders = [Case((PROGRAM, *WAITS), spoiled, cwd=folder) for folder in FOLDERS]
    programs = [Case((program, *WAITS, "$VAR", "$$", "%h"), spoiled) for program in PROGRAMS]
    check(machine, [*values, *folders, *programs])


def test_any_values_reach_the_program_as_they_are(machine: Machine):
    @settings(
        max_examples=8,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(cases=st.lists(CASES, min_size=12, max_size=12))
    def started_together(cases: list[Case]) -> None:
        check(machine, cases)

    started_together()


def test_a_recommended_unit_and_production_never_run_together(machine: Machine):
    machine.light_production()
    text = render_unit(description="d", argv=("/usr/bin/python3", *WAITS), env={}, cwd="/", conflicts=("prod.service",))
    machine.write("/etc/systemd/system/recommended.service", text)
    machine.run(["systemctl", "daemon-reload"])

    machine.run(["systemctl", "start", "recommended.service"])
    states = machine.run(["systemctl", "is-active", "prod.service", "recommended.service"], check=False).stdout.split()
    assert states == ["inactive", "active"]

    machine.run(["systemctl", "start", "prod.service"])
    states = machine.run(["systemctl", "is-active", "prod.service", "recommended.service"], check=False).stdout.split()
    assert states[0] == "active"
    assert states[1] in {"inactive", "failed"}
