from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autotuner.documents import dump, load_host, load_recommendation, parse_document, write
from autotuner.documents.finding import shipped
from autotuner.documents.writing import write_text
from autotuner.errors import AutotunerError
from autotuner.model.document import Metadata
from autotuner.model.host import EngineInstall, Host, LocalTransport, Model
from autotuner.model.recommendation import Check, Evidence, ObjectiveEvidence, Provenance, Recommendation, Spec, Subject, Validity, Verdict
from autotuner.model.workload import Cell, Slo, Workload

FILES = sorted(path for kind in ("hosts", "search_spaces", "workloads") for path in shipped(kind).glob("*.yaml"))
# Everything that a text may hold, without halves of surrogate pairs, which are no characters.
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    [
        "on",
        "off",
        "010",
        "1e-3",
        "1.5e3",
        "12:30",
        "~",
        "",
        " x ",
        "a: b",
        "# no",
        "- x",
        "true",
        "0x1F",
        ".nan",
        "a\nb\n",
        "a\nb\nc",
        "\n\n",
        "  a\nb\nc\n",
        "<<",
        "=",
        "1_0",
    ]
)
_scalars = st.booleans() | st.integers(-(10**15), 10**15) | st.floats(allow_nan=False, allow_infinity=False) | _texts


def recommendation(**changes: object) -> Recommendation:
    values: dict = {
        "apiVersion": "autotuner/v1",
        "kind": "Recommendation",
        "metadata": Subject(name="latency", host="h", workload="latency", model="/m", engine="sglang", engine_version="0.5.17"),
        "spec": Spec(parameters={"tp": 8, "spec": "off", "graphs": True}, argv=("python", "--tp", "8")),
        "evidence": Evidence(
            verdict=Verdict.IMPROVED,
            reason="1.4 × the baseline",
            objective=ObjectiveEvidence(
                metric="user_tok_s",
                unit="tok/s",
                direction="higher",
                baseline=None,
                measured=1e-5,
                change_percent=None,
                ci95_percent=(1, 2.5),
                repeats=4,
                pairs=4,
            ),
            provenance=Provenance(
                study="s",
                trial=3,
                trials_measured=9,
                trials_infeasible=1,
                fingerprint="sha256:0",
                fingerprint_fields={"gpus": 8},
                tool="x",
                measured_on="2026-01-31",
            ),
        ),
        "checks": (Check(name="pairs", status="warning", detail="few", hint=None),),
        "validity": Validity(contexts=(60,), concurrencies=(1,), output_tokens=(512,), engine_versions=("0.5.17",), drivers=("580.1",)),
    }
    return Recommendation.model_validate({**values, **changes})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_documents_survive_the_round_trip(path: Path) -> None:
    document = parse_document(path.read_text())
    text = dump(document)
    assert parse_document(text) == document
    assert dump(parse_document(text)) == text


@example(parameters={}, argv=[], reason="", env="\x85")
@settings(deadline=None)
@given(parameters=st.dictionaries(_texts, _scalars, max_size=4), argv=st.lists(_texts, max_size=4), reason=_texts, env=_texts)
def test_a_recommendation_survives_the_round_trip(parameters: dict, argv: list[str], reason: str, env: str) -> None:
    evidence = recommendation().evidence.model_copy(update={"reason": reason})
    document = recommendation(spec=Spec(parameters=parameters, argv=tuple(argv), env={"A": env}), evidence=evidence)
    assert parse_document(dump(document)) == document


def _fits_a_program(value: object) -> bool:
    """Whether a host document may hold the value: no program can be given a NUL byte."""
    return not isinstance(value, str) or "\0" not in value


@settings(deadline=None)
@given(
    env=st.dictionaries(st.from_regex(r"[A-Z]{1,5}", fullmatch=True), _texts.filter(_fits_a_program), max_size=3),
    expect=st.dictionaries(st.sampled_from(["gpus", "sm", "nvlink"]), _scalars.filter(_fits_a_program), max_size=3),
    description=_texts,
)
def test_a_host_survives_the_round_trip(env: dict, expect: dict, description: str) -> None:
    document = Host(
        apiVersion="autotuner/v1",
        kind="Host",
        metadata=Metadata(name="x", description=description),
        transport=LocalTransport(type="local"),
        engine=EngineInstall(name="sglang", env=env),
        model=Model(path="/m"),
        expect=expect,
    )
    assert parse_document(dump(document)) == document


@settings(deadline=None)
@given(
    cells=st.lists(
        st.builds(Cell, context=st.integers(1, 99), concurrency=st.integers(1, 9), weight=st.floats(0.1, 9)),
        min_size=1,
        max_size=3,
        unique_by=lambda cell: cell.key,
    ),
    limit=st.floats(1, 1e9),
)
def test_a_workload_survives_the_round_trip(cells: list[Cell], limit: float) -> None:
    document = Workload(
        apiVersion="autotuner/v1",
        kind="Workload",
        metadata=Metadata(name="x"),
        objective="ttft_p50_ms",
        cells=tuple(cells),
        slos=(Slo(metric="e2e_p95_ms", limit=limit),),
    )
    assert parse_document(dump(document)) == document


def test_old_readers_see_the_same_values() -> None:
    text = dump(recommendation(spec=Spec(parameters={"a": "on", "b": "12:30", "c": "1e-3", "d": 1e-7, "e": "010", "f": "off"}, argv=())))
    assert yaml.safe_load(text)["spec"]["parameters"] == {"a": "on", "b": "12:30", "c": "1e-3", "d": 1e-7, "e": "010", "f": "off"}


def test_a_recommendation_says_what_was_not_checked_and_names_its_schema() -> None:
    text = dump(recommendation(spec=Spec(parameters={}, argv=("python",), unit="[Unit]\nDescription=x\n")))
    assert text.startswith("# yaml-language-server: $schema=../../schemas/recommendation.schema.json\n")
    assert "\n  quality: not_checked\n" in text
    assert "\n  simulated: false\n" in text
    assert "\n  unit: |\n    [Unit]\n    Description=x\n" in text


def test_authored_documents_leave_defaults_out() -> None:
    text = dump(load_host("h200-lab"))
    assert "conflicts" not in text
    assert "from:" not in text


def test_writing_is_atomic_and_keeps_the_mode_and_the_link(tmp_path: Path) -> None:
    target = tmp_path / "real.yaml"
    target.write_text("old")
    target.chmod(0o640)
    link = tmp_path / "deep" / "latency.yaml"
    link.parent.mkdir()
    link.symlink_to(target)
    write(recommendation(), link)
    assert link.is_symlink()
    assert load_recommendation(link) == recommendation()
    assert target.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["deep", "latency.yaml", "real.yaml"]


def test_folders_above_are_made_and_new_files_follow_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "latency.yaml"
    before = os.umask(0o027)
    try:
        write(recommendation(), path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_file_in_place_of_a_folder_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AutotunerError, match=r"cannot write .*x\.yaml: File exists") as caught:
        write_text(tmp_path / "file" / "x.yaml", "text")
    assert caught.value.hint == "a part of the path is a file, or its end is a folder"


def test_a_folder_in_place_of_the_file_is_explained(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").mkdir()
    with pytest.raises(AutotunerError, match="Is a directory"):
        write_text(tmp_path / "x.yaml", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["x.yaml"]


def test_a_folder_without_permission_is_explained(tmp_path: Path) -> None:
    folder = tmp_path / "recommendations"
    folder.mkdir()
    folder.chmod(0o500)
    tmp_path.chmod(0o755)
    code = (
        "import os, sys; from pathlib import Path\n"
        "from autotuner.documents import write_text\n"
        "from autotuner.errors import AutotunerError\n"
        "os.setuid(65534) if os.getuid() == 0 else None\n"
        "try: write_text(Path(sys.argv[1]), 'text')\n"
        "except AutotunerError as error: print(error.message, '|', error.hint)\n"
    )
    target = os.path.relpath(folder / "x.yaml", folder)
    done = _python(code, target, folder)
    assert "cannot write x.yaml: Permission denied | check owner and mode of the folder (ls -ld)" in done
    assert list(folder.iterdir()) == []


@pytest.mark.host
@pytest.mark.parametrize(("options", "hint"), [("size=4k", "the disk is full"), ("ro", "mounted read-only")])
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, options: str, hint: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(tmp_path)], check=True)
    try:
        if options != "ro":
            (tmp_path / "x.yaml").write_text("old")
        with pytest.raises(AutotunerError, match="cannot write") as caught:
            write_text(tmp_path / "x.yaml", "new" * 10_000)
        assert hint in caught.value.hint
        assert [path.read_text() for path in tmp_path.iterdir()] == ([] if options == "ro" else ["old"])
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def _python(code: str, argument: str, cwd: Path) -> str:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, argument],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
