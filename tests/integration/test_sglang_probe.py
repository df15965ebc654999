from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest

from autotuner.engines.sglang import SglangEngine
from autotuner.errors import StopStudy, TransportError
from autotuner.model.host import Host
from autotuner.transports.local import LocalTransport

DATA = Path(__file__).parents[1] / "data"
PRINT_PAGE = """
import gzip, pathlib, sys
sys.argv[1:] == ["--help"] or sys.exit(9)
print(gzip.decompress(pathlib.Path({page!r}).read_bytes()).decode())
"""


def host(env: dict[str, str] | None = None, python: str = sys.executable) -> Host:
    return Host.model_validate(
        {
            "apiVersion": "autotuner/v1",
            "kind": "Host",
            "metadata": {"name": "lab"},
            "transport": {"type": "local"},
            "engine": {"name": "sglang", "python": python, "env": env or {}},
            "model": {"path": "/m"},
        }
    )


def install(folder: Path, server: str, *, version: str | None = "0.5.17") -> Host:
    """An install on ``PYTHONPATH``, without metadata, as hand-made ones are."""
    package = folder / "sglang"
    (package / "srt").mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("raise RuntimeError('the package must be found, not imported')\n" if version is None else "")
    (package / "srt" / "scheduler.py").write_text("x = 1\n")
    (package / "launch_server.py").write_text(server)
    if version:
        (package / "version.py").write_text(f'__version__ = "{version}"\n')
    return host({"PYTHONPATH": str(folder)})


def page(version: str = "0.5.17") -> str:
    return PRINT_PAGE.format(page=str(DATA / "help" / f"sglang-{version}.txt.gz"))


def probe(on: Host) -> object:
    return SglangEngine().probe(LocalTransport(), on)


def test_a_hand_made_install_is_probed(tmp_path: Path) -> None:
    build = SglangEngine().probe(LocalTransport(), install(tmp_path, page()))
    assert (build.engine, build.version) == ("sglang", "0.5.17")
    assert build.digest.startswith("sha256:")
    assert len(build.flags) > 400
    assert "--tp-size" in build.flags


def test_metadata_is_believed_before_the_sources(tmp_path: Path) -> None:
    on = install(tmp_path, page())
    info = tmp_path / "sglang-0.5.18.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.18\n")
    assert SglangEngine().probe(LocalTransport(), on).version == "0.5.18"


def test_a_patched_file_changes_the_digest_and_nothing_else_does(tmp_path: Path) -> None:
    on = install(tmp_path, page())
    engine, transport = SglangEngine(), LocalTransport()
    first = engine.probe(transport, on).digest
    (tmp_path / "sglang" / "__pycache__").mkdir(exist_ok=True)
    (tmp_path / "sglang" / "__pycache__" / "x.py").write_text("")
    (tmp_path / "sglang" / "notes.txt").write_text("")
    (tmp_path / "sglang" / "srt" / "scheduler.py").touch()
    assert engine.probe(transport, on).digest == first
    (tmp_path / "sglang" / "srt" / "scheduler.py").write_text("x = 2\n")
    assert engine.probe(transport, on).digest != first


def test_a_version_that_nobody_says_is_unknown(tmp_path: Path) -> None:
    on = install(tmp_path, page(), version="")
    assert SglangEngine().probe(LocalTransport(), on).version == "unknown"


def test_a_missing_interpreter_stops_with_where_to_set_it() -> None:
    with pytest.raises(StopStudy, match="the interpreter is not there") as caught:
        probe(host(python="/nowhere/python"))
    assert "engine.python" in (caught.value.hint or "")


def test_an_interpreter_without_sglang(tmp_path: Path) -> None:
    with pytest.raises(StopStudy, match="SGLang is not installed") as caught:
        probe(host({"PYTHONPATH": str(tmp_path)}))
    assert "PYTHONPATH" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("fail_missing_flashinfer.log", "No module named 'flashinfer'"),
        ("fail_transformers_version.log", "is already used by a Transformers config"),
    ],
)
def test_an_install_that_cannot_start_is_explained(tmp_path: Path, name: str, says: str) -> None:
    log = (DATA / "sglang" / name).read_text()
    with pytest.raises(StopStudy, match=says) as caught:
        probe(install(tmp_path, f"import sys\nsys.stderr.write({log!r})\nsys.exit(1)\n"))
    assert "Install" in (caught.value.hint or "")
    assert "Traceback" not in caught.value.message


def test_a_page_without_flags_is_no_engine(tmp_path: Path) -> None:
    with pytest.raises(StopStudy, match="exit code 0"):
        probe(install(tmp_path, ""))


def test_a_host_that_does_not_answer_is_no_verdict_about_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotuner.engines.sglang.probe.HELP_TIMEOUT_S", 0.5)
    with pytest.raises(TransportError):
        probe(install(tmp_path, "import time\ntime.sleep(60)\n"))


def test_the_pages_in_the_data_folder_are_whole() -> None:
    for path in sorted((DATA / "help").glob("sglang-*.gz")):
        assert gzip.decompress(path.read_bytes()).startswith(b"usage:")
