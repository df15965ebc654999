"""The command line as a whole: what it loads, and how every error ends."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import autotuner
from autotuner.cli import main as entry
from autotuner.cli.main import COMMANDS, cli, run
from autotuner.cli.options import Options, default_state_dir
from autotuner.errors import AutotunerError, InvalidDocument, NotRestored, Problem, Refused, UsageError

HEAVY = ("optuna", "sklearn", "numpy", "pydantic", "httpx", "yaml", "rich", "structlog", "paramiko", "platformdirs")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["-h"]])
def test_help_and_version_load_no_heavy_library(arguments: list[str]) -> None:
    script = f"import sys\nfrom autotuner.cli.main import run\ncode = run({arguments!r})\nprint(code, *sys.modules, file=sys.stderr)"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    code, *loaded = done.stderr.split()
    assert code == "0"
    assert not {name.split(".")[0] for name in loaded} & set(HEAVY)


def test_help_lists_every_command_without_loading_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0

    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"autotuner {autotuner.__version__}\n"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Put a function in the place of ``doctor``."""

    def install(body: Callable[[], object]) -> None:
        @click.command("doctor")
        @click.option("--count", type=int)
        def doctor(count: int | None) -> object:
            return body()

        monkeypatch.setattr(entry.LazyGroup, "get_command", lambda self, ctx, name: doctor if name == "doctor" else None)

    return install


def raising(error: BaseException) -> Callable[[], object]:
    def body() -> object:
        raise error

    return body


PROBLEMS = [
    Problem(file="h.yaml", line=3, column=5, message="unknown key `prot`", hint="did you mean `port`?"),
    Problem(file="h.yaml", line=9, column=1, message="`model` is missing"),
]


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (AutotunerError("disk is full", hint="make room"), 1, "error: disk is full\nhint: make room\n"),
        (AutotunerError("disk is full"), 1, "error: disk is full\n"),
        (UsageError("no such host"), 2, "error: no such host\n"),
        (Refused("leased by ada", hint="wait"), 4, "error: leased by ada\nhint: wait\n"),
        (NotRestored("down"), 5, "error: down\n"),
        (
            InvalidDocument(PROBLEMS),
            2,
            "h.yaml:3:5: error: unknown key `prot`\nhint: did you mean `port`?\nh.yaml:9:1: error: `model` is missing\n",
        ),
        (KeyboardInterrupt(), 130, "\ninterrupted\n"),
        (click.Abort(), 130, "interrupted\n"),
    ],
)
def test_errors_are_messages_with_their_exit_code(
    command: Callable[[Callable[[], object]], None], capsys: pytest.CaptureFixture[str], error: BaseException, code: int, text: str
) -> None:
    command(raising(error))

    assert run(["doctor"]) == code
    captured = capsys.readouterr()
    assert captured.err == text
    assert captured.out == ""


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_file_system_that_refuses_is_named_with_a_hint(
    command: Callable[[Callable[[], object]], None], capsys: pytest.CaptureFixture[str], number: int
) -> None:
    command(raising(OSError(number, os.strerror(number), "/data/records")))

    assert run(["doctor"]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"error: cannot use /data/records: {os.strerror(number)}"
    assert second.startswith("hint: ")


def test_an_unforeseen_error_is_one_line_and_a_file_that_only_the_user_reads(
    command: Callable[[Callable[[], object]], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AUTOTUNER_STATE_DIR", str(tmp_path))
    command(raising(ZeroDivisionError("division\nby zero")))

    assert run(["doctor"]) == 1
    first, second = capsys.readouterr().err.splitlines()
    (written,) = (tmp_path / "crashes").iterdir()
    assert first == "error: unexpected ZeroDivisionError: division by zero"
    assert f"`{written}`" in second
    assert "Traceback" in written.read_text()
    assert written.stat().st_mode & 0o777 == 0o600


def test_an_unforeseen_error_with_an_unusable_state_folder_goes_to_a_temporary_file(
    command: Callable[[Callable[[], object]], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    monkeypatch.setenv("STATE_DIRECTORY", str(occupied / "state"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    command(raising(ZeroDivisionError("x")))

    assert run(["doctor"]) == 1
    (written,) = tmp_path.glob("autotuner-*.txt")
    assert str(written) in capsys.readouterr().err


def test_a_commands_number_is_the_exit_code(command: Callable[[Callable[[], object]], None]) -> None:
    command(lambda: 3)
    assert run(["doctor"]) == 3
    command(lambda: None)
    assert run(["doctor"]) == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["docter"], "error: no such command `docter`\nhint: did you mean `autotuner doctor`?\n"),
        (["xyzzy"], "error: no such command `xyzzy`\nhint: `autotuner --help` lists the commands\n"),
        (
            ["doctor", "--count", "x"],
            "error: invalid value for '--count': 'x' is not a valid integer\nhint: `autotuner doctor --help` lists what can be given\n",
        ),
        (["--log-level", "loud", "doctor"], "error: invalid value for '--log-level'"),
    ],
)
def test_wrong_usage_ends_with_2_and_the_next_step(
    command: Callable[[Callable[[], object]], None], capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    command(lambda: 0)

    assert run(arguments) == 2
    assert capsys.readouterr().err.startswith(text)


def test_a_reader_that_goes_away_ends_the_command_quietly() -> None:
    script = (
        "import click, sys\nfrom autotuner.cli import main as entry\n"
        "@click.command('doctor')\ndef doctor():\n    for _ in range(100000): click.echo('x' * 100)\n"
        "entry.LazyGroup.get_command = lambda self, ctx, name: doctor\nsys.argv[1:] = ['doctor']\nentry.main()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def options_seen(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Options:
    seen: list[Options] = []

    @click.command("doctor")
    @click.pass_obj
    def doctor(options: Options) -> None:
        seen.append(options)

    monkeypatch.setattr(entry.LazyGroup, "get_command", lambda self, ctx, name: doctor)
    assert run([*arguments, "doctor"]) == 0
    return seen[0]


def test_global_options_come_from_the_command_line_before_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOTUNER_STATE_DIR", str(tmp_path / "environment"))
    monkeypatch.setenv("AUTOTUNER_LOG_LEVEL", "debug")

    assert options_seen(monkeypatch) == Options(state_dir=tmp_path / "environment", log_level="debug", color=True)
    assert options_seen(monkeypatch, "--state-dir", str(tmp_path / "given"), "--no-color") == Options(
        state_dir=tmp_path / "given", log_level="debug", color=False
    )


def test_no_color_in_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert options_seen(monkeypatch).color is False


def test_the_state_folder_is_systemds_first_then_the_platforms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_state_dir() == tmp_path / "autotuner"
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/autotuner:/var/lib/second")
    assert default_state_dir() == Path("/var/lib/autotuner")


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_loads_and_has_the_help_that_the_list_shows(name: str) -> None:
    with click.Context(cli, info_name="autotuner") as context:
        command = cli.get_command(context, name)

    assert command is not None
    assert command.name == name
    assert command.get_short_help_str(limit=200) == COMMANDS[name].summary
    assert command.help
    undocumented = [option.name for option in command.params if isinstance(option, click.Option) and not option.help]
    assert undocumented == []


def test_an_unforeseen_error_that_no_file_takes_is_printed_in_full(
    command: Callable[[Callable[[], object]], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    monkeypatch.setenv("STATE_DIRECTORY", str(occupied / "state"))
    monkeypatch.setattr("tempfile.tempdir", str(occupied / "tmp"))
    command(raising(ZeroDivisionError("x")))

    assert run(["doctor"]) == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert shown.splitlines()[-2:] == [
        "error: unexpected ZeroDivisionError: x",
        "hint: this is a bug in autotuner: please report it with the traceback above",
    ]


def ended(arguments: str, redirection: str, state: Path) -> subprocess.CompletedProcess[str]:
    script = f"{sys.executable} -c 'from autotuner.cli.main import main; main()' --state-dir {state} {arguments} {redirection}"
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)


def test_a_disk_that_takes_no_output_is_told_once(tmp_path: Path) -> None:
    for arguments in ("status --json", "--help"):
        done = ended(arguments, ">/dev/full", tmp_path)

        assert done.returncode == 1
        assert done.stderr.splitlines()[0].startswith("error: cannot use a file or standard output: No space left on device")
        assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "<&- >&- 2>&-"])
def test_streams_that_are_closed_or_full_do_not_disturb_a_command(tmp_path: Path, redirection: str) -> None:
    done = ended("status --json", redirection, tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("" if ">&- 2" in redirection else "[]\n")
    assert ended("docter", redirection, tmp_path).returncode == 2


def test_no_command_is_answered_with_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0

    captured = capsys.readouterr()
    assert captured.out.startswith("Usage: autotuner ")
    assert captured.err == ""


BAD_NUMBERS = [
    ("--concurrency", "100000000", "100000000 is above the limit of 4096"),
    ("--contexts", "999999999", "999999999 is above the limit of 100000000"),
    ("--contexts", "60,many", "`60,many` is not a list of whole numbers above zero, like 60,1024,4096"),
    ("--output-tokens", "999999999", "999999999 is not in the range 1<=x<=100000000"),
    ("--window", "nan", "`nan` is not a number of seconds from 0.1 to 3600"),
    ("--window", "inf", "`inf` is not a number of seconds from 0.1 to 3600"),
    ("--window", "1e300", "`1e300` is not a number of seconds from 0.1 to 3600"),
    ("--warmup", "nan", "`nan` is not a number of seconds from 0 to 3600"),
    ("--warmup", "-1", "`-1` is not a number of seconds from 0 to 3600"),
    ("--trials", "100001", "100001 is not in the range 1<=x<=100000"),
    ("--seed", "-1", "-1 is not in the range"),
]


@pytest.mark.parametrize(("option", "value", "message"), BAD_NUMBERS)
def test_numbers_that_nobody_means_are_refused_with_the_limit(
    capsys: pytest.CaptureFixture[str], option: str, value: str, message: str
) -> None:
    assert run(["tune", "lab", "--space", "small", option, value]) == 2

    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"error: invalid value for '{option}': {message}")
    assert second == "hint: `autotuner tune --help` lists what can be given"


@pytest.mark.parametrize(
    ("arguments", "message", "simulated"),
    [
        (["no-such-host", "--space", "sglang-kimi-k26"], "no-such-host", None),
        (["simulated-b300", "--space", "sglang-kimi-k26", "--budget", "99999999999h"], "longer than 30 days", True),
        (["simulated-b300", "--space", "sglang-kimi-k26", "--window", "nan"], "'--window'", None),
        (["simulated-b300", "--bogus"], "--bogus", None),
        (["simulated-b300"], "'--space'", None),
    ],
)
def test_a_fatal_error_is_a_json_object_where_the_events_are(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str, *, simulated: bool | None
) -> None:
    assert run(["tune", *arguments, "--json"]) == 2

    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    told = json.loads(line)
    assert message in told.pop("message")
    assert told.pop("hint")
    assert told == {"event": "Error", "exit_code": 2, "simulated": simulated}
    assert captured.out == ""
