from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner.services import onhost
from autotuner.services.onhost import asking, candidate, groups, journal, revertable, systemctl

DATA = Path(__file__).parents[1] / "data" / "systemd"


def text(name: str) -> str:
    return (DATA / name).read_text()


def shown(name: str) -> dict[str, str]:
    return systemctl.parse_show(text(name))


@pytest.mark.parametrize(
    ("name", "running", "exit_code", "out_of_memory", "gone"),
    [
        ("running", True, None, None, False),
        ("gone", False, None, False, True),
        ("asked", False, None, False, True),
        ("exit3", False, 3, False, False),
        ("exited", False, 0, False, False),
        ("kill", False, -9, False, False),
        ("term", False, -15, False, False),
        ("segv", False, -11, False, False),
        ("oom-v1", False, -9, False, False),  # cgroup v1 does not say so; its memory limit does
        ("oom-v2", False, -9, True, False),
    ],
)
def test_how_a_candidate_ended(name, running, exit_code, out_of_memory, gone):
    found = candidate.verdict(shown(f"show-candidate-{name}.txt"))
    assert (found["running"], found["exit_code"], found.get("out_of_memory"), found["gone"]) == (running, exit_code, out_of_memory, gone)


def test_a_unit_that_settles_is_still_running():
    for active in ("activating", "deactivating", "reloading"):
        assert candidate.verdict({"LoadState": "loaded", "ActiveState": active, "MainPID": "7"})["running"]


def test_properties_of_units():
    found = shown("show-production.txt")
    assert (found["Id"], found["ActiveState"], found["UnitFileState"], found["NeedDaemonReload"]) == (
        "prod.service",
        "active",
        "enabled",
        "no",
    )
    assert systemctl.number(found, "MainPID") == 405
    assert systemctl.listed(found, "DropInPaths") == []
    assert shown("show-notfound.txt")["LoadState"] == "not-found"
    assert shown("show-masked.txt")["LoadState"] == "masked"


def test_values_of_several_lines_and_properties_that_come_twice():
    assert systemctl.parse_show("A=1\nmore\n\nB=x=y\nA=2\nnot a property\n") == {"A": "1\nmore\n2\nnot a property", "B": "x=y"}


@given(st.text())
def test_any_text_is_read_without_an_error(anything: str):
    systemctl.parse_show(anything)
    systemctl.parse_names(anything)
    systemctl.parse_span(anything)
    systemctl.parse_command(anything)
    journal.parse_entry(anything.encode(errors="replace"))
    asking.model_ids(anything)


def test_moments_and_spans():
    assert systemctl.parse_moment(shown("show-production.txt")["ExecMainStartTimestamp"]) == 1795983386.0
    assert systemctl.parse_moment("") is None
    assert systemctl.parse_moment("n/a") is None
    assert systemctl.parse_moment("Sun 2026-11-29 20:16:26 CET") is None
    assert systemctl.parse_span(shown("show-timer.txt")["NextElapseUSecMonotonic"]) == pytest.approx(4 * 3600 + 3 * 60 + 35.840519)
    assert systemctl.parse_span("1month 2d 5h 3ms 4us") == pytest.approx(2629800 + 2 * 86400 + 5 * 3600 + 0.003004)
    assert systemctl.parse_span("1min 30s") == 90.0
    for nothing in ("infinity", "", "n/a", "[not set]"):
        assert systemctl.parse_span(nothing) is None


def test_names_of_units():
    names = systemctl.parse_names(text("list-units.txt"))
    assert names[0] == "autotuner-30000-exit3.service"
    assert len(names) == 6


def test_command_lines():
    path, said = systemctl.parse_command(text("execstart-plain.txt")) or ("", "")
    assert (path, said.split()[3], said.split()[-1]) == ("/usr/bin/python3", "/opt/engine/serve.py", "production")
    assert systemctl.parse_command(text("execstart-two.txt")) is None
    assert systemctl.parse_command(text("execstart-none.txt")) is None


PLAIN = "{{ path={0} ; argv[]={1} ; ignore_errors=no ; start_time=[n/a] ; stop_time=[n/a] ; pid=0 ; code=(null) ; status=0/0 }}"


@pytest.mark.parametrize(
    ("path", "said", "argv", "expected"),
    [
        ("/usr/bin/python3", "/usr/bin/python3 -m sglang --port 1", ["/usr/bin/python3", "-m", "sglang", "--port", "1"], None),
        ("/usr/bin/python3", "/usr/bin/python3 -m sglang --port 1", ["/usr/bin/python3", "-m", "sglang", "--port", "2"], False),
        ("/bin/sleep", "engine 6 00", ["engine", "6 00"], None),
        ("/usr/bin/numactl", "/usr/bin/numactl -N 0 python3 -m x", ["python3", "-m", "x"], None),
        ("/usr/bin/python3", "/usr/bin/python3 -m x $ARGS", ["/usr/bin/python3", "-m", "x", "--tp", "8"], True),
        ("/bin/bash", "/bin/bash -lc exec python3 -m x", ["/venv/bin/python3", "-m", "x"], True),
        ("/usr/bin/python3", "/usr/bin/python3 -m x", ["sglang::server"], True),
    ],
)
def test_what_runs_is_compared_with_what_the_unit_says(path, said, argv, expected):
    remark = revertable.same_command(argv, PLAIN.format(path, said))
    assert (None if remark is None else remark[0]) is expected


def unit(**changes: object) -> dict[str, object]:
    found = shown("show-production.txt")
    return {**found, "name": "prod.service", "role": "production", "active": True, "answered": True, "argv": [], "ExecStart": "", **changes}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ""),
        ({"LoadState": "not-found", "active": False}, "does not exist"),
        ({"LoadState": "bad-setting"}, "cannot be read by systemd"),
        ({"LoadState": "masked"}, "is masked"),
        ({"UnitFileState": "masked-runtime"}, "is masked"),
        ({"UnitFileState": "generated", "FragmentPath": "/run/systemd/generator/prod.service"}, "would be gone once stopped"),
        ({"Transient": "yes"}, "would be gone once stopped"),
        ({"NeedDaemonReload": "yes"}, "not reloaded"),
        ({"RefuseManualStart": "yes"}, "refuses to be started"),
        ({"StopWhenUnneeded": "yes"}, "stopped as soon as nothing needs it"),
        ({"DynamicUser": "yes"}, "DynamicUser"),
        ({"ActiveState": "activating", "active": False}, "is activating right now"),
        ({"answered": False}, "does not answer"),
        ({"answered": False, "role": "conflict"}, ""),
        ({"answered": False, "active": False, "ActiveState": "inactive"}, ""),
        ({"name": "multi-user.target", "role": "dependent"}, "would be stopped along"),
    ],
)
def test_why_a_unit_could_not_be_brought_back(changes: dict[str, object], expected: str):
    problems, _ = revertable.of_unit(unit(**changes), [], [])
    assert [expected in problem.message for problem in problems] == ([True] if expected else [])
    assert all(problem.hint for problem in problems)


def test_triggers_and_changed_files_are_named():
    assert "prod.socket" in revertable.of_unit(unit(), ["prod.socket"], [])[0][0].hint
    assert "/etc/x" in revertable.of_unit(unit(), [], ["/etc/x"])[0][0].message


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/system.slice/prod.service", ("service", "prod.service")),
        ("/system.slice/prod.service/worker", ("service", "prod.service")),
        ("/host-a/system.slice/system-prod.slice/prod@1.service", ("service", "prod@1.service")),
        ("/system.slice/docker-0123456789abcdef.scope", ("container", "docker-0123456789abcdef.scope")),
        ("/docker/0123456789abcdef0123", ("container", "docker/0123456789abcdef0123")),
        ("/system.slice/prod.service/libpod-payload-0123", ("container", "libpod-payload-0123")),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/prod.service", ("user", "prod.service")),
        ("/user.slice/user-1000.slice/session-3.scope", ("none", "")),
        ("/user.slice/user-1000.slice/user@1000.service/init.scope", ("none", "")),
        ("", ("none", "")),
    ],
)
def test_who_keeps_a_process_running(path: str, expected: tuple[str, str]):
    assert groups.manager_of(path) == expected


def test_entries_of_the_journal():
    pieces = [journal.parse_entry(line) for line in (DATA / "journal-log.jsonl").read_bytes().splitlines()]
    assert b"".join(piece for piece, _ in pieces) == b"a\xffb\n" + b"x" * 2000 + b"\nno end\n"
    assert all(cursor.startswith("s=") for _, cursor in pieces)
    assert journal.parse_entry(b'{"MESSAGE":null,"__CURSOR":"s=1"}') == (b"\n", "s=1")
    assert journal.parse_entry(b'{"MESSAGE":["one","two"],"__CURSOR":"s=1"}') == (b"one\n", "s=1")
    for broken in (b"", b"[]", b'{"MESSAGE":', b"\xff"):
        assert journal.parse_entry(broken) == (b"", "")


def test_what_the_kernel_says_about_memory():
    said = text("kernel-oom-v2.txt")
    assert journal.says_out_of_memory(said, "autotuner-30000-candidate-1.service", 1)
    assert journal.says_out_of_memory(said, "other.service", 285)
    assert not journal.says_out_of_memory(said, "other.service", 28)
    assert journal.says_out_of_memory(text("kernel-oom-global.txt"), "x.service", 4711)
    assert not journal.says_out_of_memory(text("kernel-oom-global.txt"), "x.service", 471)


def test_lists_of_models():
    assert asking.model_ids('{"data": [{"id": "b"}, {"id": "a"}]}') == ["a", "b"]
    for broken in ("", "[]", "{}", '{"data": [1]}', '{"data": null}'):
        assert asking.model_ids(broken) is None


@pytest.mark.parametrize("path", sorted(Path(onhost.__file__).parent.glob("*.py")), ids=lambda path: path.name)
def test_what_runs_on_hosts_is_python_3_8(path: Path):
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    imported = {name.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {(node.module or "").split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 0}
    assert "autotuner" not in imported
