"""The bench as people meet it: any endpoint, every load, every way to be refused, against real servers."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

import pytest

from autotuner.cli.main import run
from autotuner.loadgen.fleet import fleet
from autotuner.model.measurement import METRICS
from tests.integration.certificates import certificate
from tests.integration.simulated import Running, server
from tests.ports import free_port

KEY = "sk-not-to-be-seen"
SMALL = ["--window", "1", "--warmup", "0.3", "--output-tokens", "12"]
SPECULATION = ("--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", "d")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    flags = ("--tp-size", "8", *SPECULATION, "--enable-metrics", "--enable-cache-report")
    with server(tmp_path_factory.mktemp("bench"), *flags, profile="b300") as found:
        found.wait_ready()
        yield found


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with server(tmp_path_factory.mktemp("locked"), "--tp-size", "8", "--api-key", KEY, profile="b300") as found:
        found.wait_ready()
        yield found


class Scripted:
    """A server that answers every GET with one page, and every POST of a chat with two tokens."""

    def __init__(self, status: int, page: str, tls: ssl.SSLContext | None = None) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(status if self.path == "/v1/models" else 404, "application/json", page.encode())

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                tokens = len(json.dumps(asked["messages"])) // 4
                usage = {"prompt_tokens": tokens, "completion_tokens": 2}
                if not asked.get("stream"):
                    self._answer(200, "application/json", json.dumps({"usage": usage}).encode())
                    return
                events = [
                    {"choices": [{"delta": {"content": "a"}}], "usage": {**usage, "completion_tokens": 1}},
                    {"choices": [{"delta": {"content": "b"}, "finish_reason": "stop"}], "usage": usage},
                ]
                text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
                self._answer(200, "text/event-stream", text.encode())

            def _answer(self, code: int, kind: str, body: bytes) -> None:
                self.send_response(code)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A client that goes away in the middle of an answer is what abandoning a request looks like."""

        self._server = Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def result(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def test_a_matrix_is_measured_printed_and_written(running: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = [
        "bench",
        f"{running.url}/v1/",
        "--contexts",
        "60,512",
        "--concurrency",
        "1,2",
        *SMALL,
        "--label",
        "mine",
        "--out",
        str(out),
    ]
    assert run(arguments) == 0
    shown = capsys.readouterr()
    head, *lines = shown.out.splitlines()
    assert head.split()[:2] == ["context", "load"]
    assert all(title in head for title in ("output tok/s", "TTFT p50 ms", "accepted tok/step"))
    assert [line.split()[:2] for line in lines if not line.startswith("    !")] == [[c, f"C={n}"] for c in ("60", "512") for n in (1, 2)]
    assert f"mine: kimi at {running.url}, counters of sglang" in shown.err
    found = result(out)
    assert (found["label"], found["model"], found["engine"], found["interrupted"], found["planned"]) == ("mine", "kimi", "sglang", False, 4)
    for cell in found["cells"]:
        assert cell["load"] == "closed"
        assert cell["client"]["clock"] == "kernel"
        assert cell["prompt_lengths"]["missed"] == 0, cell["prompt_lengths"]
        assert cell["metrics"]["acceptance_length"]["value"] > 1
        for name, metric in cell["metrics"].items():
            assert name in METRICS
            assert metric.get("low", metric["value"]) <= metric["value"] <= metric.get("high", metric["value"])
        rows = gzip.decompress((out / "requests" / f"{cell['key']}.jsonl.gz").read_bytes()).decode().splitlines()
        assert sum(1 for row in rows if json.loads(row).get("finish_reason")) >= cell["requests"] - cell["concurrency"]
    table = list(csv.DictReader((out / "result.csv").read_text().splitlines()))
    assert [row["key"] for row in table] == [cell["key"] for cell in found["cells"]]
    assert all(float(row["output_tok_s"]) > 0 for row in table)


def test_an_open_loop_sends_when_it_is_due_and_counts_from_then(running: Running, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(
        [
            "bench",
            running.url,
            "--contexts",
            "60",
            "--fixed-rate",
            "20",
            "--window",
            "2",
            "--warmup",
            "0.3",
            "--output-tokens",
            "4",
            "--out",
            str(out),
        ]
    )
    (cell,) = result(out)["cells"]
    assert (cell["load"], cell["rate"]) == ("fixed", 20.0)
    assert cell["open_loop"]["due"] == pytest.approx(40, abs=1)
    records = [json.loads(row) for row in gzip.decompress((out / "requests" / f"{cell['key']}.jsonl.gz").read_bytes()).splitlines()]
    due = sorted(record["start_s"] for record in records)
    assert all(later - earlier == pytest.approx(0.05, abs=1e-6) for earlier, later in itertools.pairwise(due))
    assert all(record["sent_s"] >= record["start_s"] for record in records if "sent_s" in record)


def test_more_than_the_server_can_do_is_not_steady_and_a_full_house_is_told(running: Running, tmp_path: Path) -> None:
    out = tmp_path / "out"
    load = ["--fixed-rate", "40", "--max-in-flight", "2", "--window", "2", "--warmup", "0.2", "--output-tokens", "200", "--ignore-eos"]
    run(["bench", running.url, "--contexts", "60", *load, "--out", str(out)])
    (cell,) = result(out)["cells"]
    assert cell["steady"] is False
    assert cell["open_loop"]["held"] > 0
    assert cell["open_loop"]["in_flight_last"] > cell["open_loop"]["in_flight_first"] + 10
    assert any(warning.startswith("not steady: the backlog grew") for warning in cell["warnings"])


def test_a_log_is_replayed_with_its_times_and_limits(running: Running, tmp_path: Path) -> None:
    log, out = tmp_path / "log.jsonl", tmp_path / "out"
    offsets = (0, 0.1, 0.1, 0.7)
    lines = [
        {"messages": [{"role": "user", "content": f"Tell me of {at}"}], "max_tokens": 3 + at, "arrival_s": 7 + s}
        for at, s in enumerate(offsets)
    ]
    log.write_text("\n".join(json.dumps(line) for line in lines))
    assert run(["bench", running.url, "--replay", str(log), "--ignore-eos", "--out", str(out)]) == 0
    (cell,) = result(out)["cells"]
    assert (cell["load"], cell["requests"], cell["context"], cell["prompt_lengths"]) == ("replay", 4, None, None)
    rows = gzip.decompress((out / "requests" / "own-replay-out256.jsonl.gz").read_bytes()).splitlines()
    records = sorted((json.loads(row) for row in rows), key=lambda record: record["index"])
    assert [record["completion_tokens"] for record in records] == [3, 4, 5, 6]
    assert [record["start_s"] - records[0]["start_s"] for record in records] == pytest.approx(offsets, abs=1e-6)


def test_own_prompts_are_asked_and_do_not_meet_the_prefix_cache(running: Running, tmp_path: Path) -> None:
    own, out = tmp_path / "own.jsonl", tmp_path / "out"
    own.write_text(
        json.dumps({"conversations": [{"from": "human", "value": "Describe the sea. " * 60}, {"from": "gpt", "value": "x"}]}) + "\n"
    )
    assert run(["bench", running.url, "--prompts", str(own), "--concurrency", "2", *SMALL, "--out", str(out)]) == 0
    rows = gzip.decompress((out / "requests" / "own-c2-out12.jsonl.gz").read_bytes()).splitlines()
    records = [json.loads(row) for row in rows]
    assert {record["domain"] for record in records} == {"own"}
    assert all(record.get("cached_tokens", 0) == 0 for record in records)
    again = tmp_path / "again"
    assert run(["bench", running.url, "--prompts", str(own), "--keep-prefixes", "--concurrency", "2", *SMALL, "--out", str(again)]) == 0
    rows = gzip.decompress((again / "requests" / "own-c2-out12.jsonl.gz").read_bytes()).splitlines()
    assert any(json.loads(row).get("cached_tokens", 0) > 100 for row in rows)


def test_text_completions_are_measured_as_well(running: Running, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(["bench", running.url, "--api", "completions", "--contexts", "300", "--concurrency", "2", *SMALL, "--out", str(out)]) == 0
    (cell,) = result(out)["cells"]
    assert cell["prompt_lengths"]["missed"] == 0
    assert cell["metrics"]["output_tok_s"]["value"] > 0


def test_a_key_comes_from_the_environment_or_a_file_and_stands_nowhere(
    locked: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key").write_text(KEY + "\n")
    monkeypatch.setenv("BENCH_KEY", KEY)
    for source in ("env:BENCH_KEY", f"file:{tmp_path / 'key'}"):
        out = tmp_path / source[:3]
        arguments = [
            "bench",
            locked.url,
            "--api-key",
            source,
            "--contexts",
            "60",
            "--concurrency",
            "1",
            *SMALL,
            "--out",
            str(out),
            "--json",
        ]
        assert run(arguments) == 0
        shown = capsys.readouterr()
        assert json.loads(shown.out)["cells"][0]["requests"] > 0
        assert json.loads(shown.out)["engine"] is None
        written = "".join(path.read_text() for path in out.glob("*.*"))
        assert KEY not in shown.out + shown.err + written


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ([], "HTTP 401: the server wants a key", "--api-key env:NAME"),
        (["--api-key", "env:WRONG_KEY"], "HTTP 401", "the key was refused"),
        (["--api-key", "env:NO_SUCH_KEY"], "NO_SUCH_KEY is not set", "export"),
        (["--api-key", "file:/no/such"], "/no/such cannot be read", None),
        (["--api-key", "env:ODD_KEY"], "is not a key", None),
        (["--api-key", KEY], "not given on the command line", "env:NAME or file:PATH"),
    ],
)
def test_a_key_that_is_missing_or_wrong_is_one_message(  # noqa: PLR0917 - fixtures and parameters
    locked: Running,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
    hint: str | None,
) -> None:
    monkeypatch.setenv("WRONG_KEY", "sk-wrong")
    monkeypatch.setenv("ODD_KEY", "two words")
    code = run(["bench", locked.url, *options, *SMALL, "--out", str(tmp_path / "out")])
    told = capsys.readouterr().err
    assert code in (1, 2)
    assert told.startswith("error: ")
    assert message in told
    assert hint is None or hint in told
    assert KEY not in told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "code", "message", "hint"),
    [
        (["--model", "kimmi"], 1, "does not serve the model `kimmi`", "did you mean kimi?"),
        (["--contexts", "16000", "--output-tokens", "900"], 2, "do not fit the 16384 tokens", "smaller --contexts"),
        (["--engine", "vllm"], 1, "is no metrics page of vllm: it is one of sglang", "--engine none"),
        (["--rate", "0"], 2, "is not a list of rates", None),
        (["--rate", "nan"], 2, "is not a list of rates", None),
        (["--rate", "1", "--fixed-rate", "2"], 2, "exclude each other", None),
        (["--rate", "1", "--concurrency", "4"], 2, "exclude each other", "--max-in-flight"),
        (["--precision", "200%"], 2, "is not a precision", None),
        (["--domains", "code,limericks"], 2, "`limericks` is no kind of prompt", "choose of code"),
        (["--keep-prefixes"], 2, "--keep-prefixes is about own prompts", None),
        (["--prompts", "/no/such"], 2, "does not exist", "--help"),
    ],
)
def test_what_cannot_be_is_one_message_and_nothing_is_written(  # noqa: PLR0917 - fixtures and parameters
    running: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: int, message: str, hint: str | None
) -> None:
    assert run(["bench", running.url, *options, "--out", str(tmp_path / "out")]) == code
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert message in told
    assert hint is None or hint in told
    assert not (tmp_path / "out").exists()


def test_own_prompts_that_are_none_are_told_with_line_and_column(
    running: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.jsonl"
    own.write_text('{"prompt": "fine"}\n{"prompt": }\n{"messages": 3}\n')
    assert run(["bench", running.url, "--prompts", str(own)]) == 2
    told = capsys.readouterr().err
    assert f"{own}:2:12: error: the line is not JSON" in told
    assert f"{own}:3:2: error: `messages` is not a list" in told
    assert told.count("hint: ") == 1


@pytest.mark.parametrize(
    ("status", "page", "message"),
    [
        (200, '{"data": []}', "the server has no model"),
        (200, '{"models": []}', "the answer is no list of models"),
        (200, "<html>hello</html>", "the answer is no list of models: '<html>hello</html>'"),
        (404, "{}", "the server does not list its models"),
        (503, "starting", "HTTP 503: starting"),
    ],
)
def test_a_server_without_models_is_told(status: int, page: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Scripted(status, page) as scripted:
        assert run(["bench", scripted.url, "--out", str(tmp_path / "out")]) == 1
    told = capsys.readouterr().err
    assert message in told
    assert "\nhint: " in told


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", "http://u:p@x", "http://x?key=1", "http://x:99999"])
def test_what_is_no_url_is_told(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", url]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_port_where_nobody_listens_is_told_as_an_event_where_events_are_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", f"http://127.0.0.1:{free_port()}", "--json"]) == 1
    told = json.loads(capsys.readouterr().err)
    assert "Connection refused" in told["message"]
    assert told["exit_code"] == 1


def test_a_result_is_never_written_over(running: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "result.json").write_text("{}")
    assert run(["bench", running.url, "--out", str(tmp_path)]) == 2
    assert "holds the result of another bench" in capsys.readouterr().err
    assert (tmp_path / "result.json").read_text() == "{}"


def test_a_server_that_answers_nothing_is_a_result_and_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faults = [{"kind": "http-500", "requests": None}]
    with server(tmp_path, "--tp-size", "8", profile="b300", faults=faults) as broken:
        broken.wait_ready()
        own = tmp_path / "own.jsonl"
        own.write_text('{"prompt": "Say something."}\n' * 3)
        out = tmp_path / "out"
        code = run(["bench", broken.url, "--prompts", str(own), "--concurrency", "4", *SMALL, "--out", str(out)])
    shown = capsys.readouterr()
    assert code == 1
    assert "no request was answered" in shown.out
    assert "http-500" in shown.out
    assert result(out)["cells"][0]["errors"] == {"http-500": pytest.approx(result(out)["cells"][0]["failed"])}


def test_a_folder_that_cannot_be_written_is_told(running: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run(["bench", running.url, "--contexts", "60", *SMALL, "--out", str(tmp_path / "file" / "out")]) in (1, 4)
    told = capsys.readouterr().err
    assert "error: cannot write" in told
    assert "Traceback" not in told


def test_the_registry_of_metrics_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--metrics"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown and metric.definition in shown for name, metric in METRICS.items())


def test_one_interrupt_writes_what_was_measured_and_ends_with_130(running: Running, tmp_path: Path) -> None:
    out = tmp_path / "out"
    argv = [sys.executable, "-m", "autotuner.cli.main", "bench", running.url, "--contexts", "60", "--concurrency", "1,2,3,4,5,6", *SMALL]
    code = "import sys; from autotuner.cli.main import main; main()"
    process = subprocess.Popen([sys.executable, "-c", code, *argv[3:], "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not (out / "result.json").exists() and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    shown, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    found = result(out)
    assert found["interrupted"] is True
    assert 1 <= len(found["cells"]) < 6
    assert b"C=1" in shown
    assert not list(out.rglob(".*"))


def test_an_encrypted_endpoint_is_measured_with_the_clients_own_clock_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    authority, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority, key)
    out = tmp_path / "out"
    with Scripted(200, '{"data": [{"id": "m"}]}', tls=context) as scripted:
        arguments = ["bench", scripted.url, "--contexts", "200", "--concurrency", "2", *SMALL, "--out", str(out)]
        assert run(arguments) == 1
        assert "certificate verify failed" in capsys.readouterr().err
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        fleet().close()  # workers that rest were started without it
        assert run(arguments) == 0
    shown = capsys.readouterr()
    assert "note: https: times are the client's own" in shown.err
    (cell,) = result(out)["cells"]
    assert (cell["client"]["clock"], cell["failed"]) == ("user", 0)
    assert cell["requests"] > 0
    assert "times are the client's own" in shown.out
