from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from autotuner.engines.sglang import SglangEngine
from autotuner.engines.sglang.catalogue import notice_rules, rules
from autotuner.engines.sglang.failures import TAIL_LINES, classify, notices
from autotuner.engines.sglang.stages import last_stage, reached, stage_of
from autotuner.model.outcome import Consequence, Failure, Stage

DATA = Path(__file__).parents[1] / "data" / "sglang"
SAMPLES = json.loads((DATA / "failure_samples.json").read_text())
NOTICES = [sample for sample in SAMPLES if sample["cls"] == "silent" or sample["id"] in {"dflash-block-warn", "sgl-retract"}]
FAILURES = [sample for sample in SAMPLES if sample not in NOTICES]
HEALTHY = sorted(path.name for path in DATA.glob("*.log.gz"))
REJECTIONS = json.loads((DATA / "rejections-0.5.17.json").read_text())
"""One message of every kind with which SGLang 0.5.17 refused 1058 of 2000 sampled command lines."""
EXCEPTION = re.compile(r"^[\w.]+: |^Exception: ")


def healthy(name: str) -> str:
    return gzip.decompress((DATA / name).read_bytes()).decode()


def start_up(until: str) -> list[str]:
    """A real start-up of two ranks, up to the line that holds ``until``."""
    lines = []
    for line in healthy("dflash_b8.log.gz").splitlines():
        if until in line:
            return lines
        both = line.startswith("[2026") and "server_args" not in line
        lines += [line.replace("] ", f" TP{rank}] ", 1) for rank in (0, 1)] if both else [line]
    raise AssertionError(until)


def wrapped(sample: str) -> list[str]:
    """What two ranks, their parent and the other libraries print around the first cause."""
    frames = '  File "/site-packages/sglang/srt/managers/scheduler.py", line 3000, in run_scheduler_process\n    scheduler = Scheduler('
    if sample.startswith((" ", "File")):
        inner = f"{frames}\n{sample}" if EXCEPTION.search(sample.splitlines()[-1]) else f"{frames}\n{sample}\nAssertionError"
        cause = f"[2026-11-29 14:53:30 TP0] Scheduler hit an exception: Traceback (most recent call last):\n{inner}\n"
    elif EXCEPTION.match(sample) and "error:" not in sample and not sample.startswith("ERROR"):
        cause = f"[2026-11-29 14:53:30 TP0] Scheduler hit an exception: Traceback (most recent call last):\n{frames}\n{sample}\n"
    else:
        cause = sample
    return [
        *cause.splitlines(),
        "",
        "[2026-11-29 14:53:30 TP1] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "/site-packages/torch/distributed/distributed_c10d.py", line 2800, in all_reduce',
        "    work = group.allreduce([tensor], opts)",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:23",
        "",
        "[2026-11-29 14:53:31] Received sigquit from a child process. It usually means the child failed.",
    ]


def of(log: str, *, exit_code: int | None = 1, stage: Stage = Stage.START) -> Failure:
    return classify(log, exit_code=exit_code, stage=stage)


@pytest.mark.parametrize("sample", FAILURES, ids=[sample["id"] for sample in FAILURES])
def test_every_known_failure_is_found_behind_the_noise_of_other_ranks(sample: dict[str, str]) -> None:
    lines = [sample["sample"]] if sample["cls"] == "transient" or "SIGQUIT" in sample["sample"] else wrapped(sample["sample"])
    if sample["stage"] in {"dist-init", "start"}:
        log = start_up("Load weight begin")[:-4]
    else:
        log = start_up("Capture target verify CUDA graph begin")
    secondary = sample["id"] in {rule.id for rule in rules() if rule.secondary}
    failure = of("\n".join([*log, *([sample["sample"]] if secondary else lines)]))
    assert failure.cls == sample["cls"]
    assert failure.kind == ("xid-engine" if sample["id"] == "xid" else sample["id"])
    assert failure.evidence
    assert failure.cause.endswith(".")
    assert failure.remedy


@pytest.mark.parametrize("rejection", REJECTIONS, ids=[f"{n}-{rejection['kind']}" for n, rejection in enumerate(REJECTIONS)])
def test_every_refusal_of_a_real_build_is_the_configurations_own(rejection: dict[str, str]) -> None:
    frame = '  File "/site-packages/sglang/launch_server.py", line 57, in <module>\n    server_args = prepare_server_args(sys.argv[1:])'
    words = rejection["message"]
    failure = of(words if " error: " in words else f"Traceback (most recent call last):\n{frame}\n{words}")
    assert (failure.kind, failure.consequence) == (rejection["kind"], Consequence.INFEASIBLE)


@pytest.mark.parametrize("sample", NOTICES, ids=[sample["id"] for sample in NOTICES])
def test_what_is_no_failure_is_a_notice_and_never_the_cause(sample: dict[str, str]) -> None:
    line = f"[2026-11-29 14:53:30 TP0] {sample['sample']}"
    assert len(notices(f"{line}\n{line}")) == 1
    assert "{" not in notices(line)[0]
    assert sample["id"] in {notice.id for notice in notice_rules() if notice.cls == sample["cls"]}
    assert of(f"{line}\nSegmentation fault", exit_code=-11).kind == "unknown"


@pytest.mark.parametrize(
    ("name", "kind", "stage", "fact"),
    [
        ("fail_missing_flashinfer.log", "mod-missing", Stage.PARSE, "flashinfer"),
        ("fail_missing_module_sgl_kernel.log", "mod-missing", Stage.PARSE, "sgl_kernel.infllm_v2"),
        ("fail_transformers_version.log", "dep-version", Stage.START, None),
    ],
)
def test_real_installs_that_cannot_start_are_the_hosts_fault(name: str, kind: str, stage: Stage, fact: str | None) -> None:
    failure = of((DATA / name).read_text())
    assert (failure.kind, failure.cls, failure.stage, failure.consequence) == (kind, "env", stage, Consequence.HOST_BROKEN)
    assert failure.facts.get("module") == fact
    assert failure.evidence[0] in (DATA / name).read_text()


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_log_is_no_known_failure(name: str) -> None:
    log = healthy(name)
    assert of(log, exit_code=-15).kind == "terminated"
    assert of(log, exit_code=-15).consequence is Consequence.TRANSIENT
    before = log[: log.index("SIGTERM received")].rsplit("\n", 1)[0]
    failure = of(before, exit_code=1, stage=Stage.SERVE)
    assert (failure.kind, failure.cls, failure.stage) == ("unknown", "unknown", Stage.SERVE)


def test_a_module_that_is_missing_later_belongs_to_the_configuration() -> None:
    log = [*start_up("server is fired up"), "[2026-11-29 14:53:41] Initialization failed. warmup error: Traceback (most recent call last):"]
    log += ['  File "x.py", line 1, in <module>', "    import flash_attn.cute", "ModuleNotFoundError: No module named 'flash_attn.cute'"]
    failure = of("\n".join(log))
    assert (failure.kind, failure.stage, failure.consequence) == ("mod-missing", Stage.WARMUP, Consequence.INFEASIBLE)
    assert "--skip-server-warmup" in (failure.remedy or "")


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 95.00 GiB"


@pytest.mark.parametrize(
    ("until", "stage", "remedy"),
    [
        ("Load weight end", Stage.LOAD, "more GPUs"),
        ("Capture target prefill", Stage.KV_SIZING, "Lower mem_fraction"),
        ("Capture target verify CUDA graph end", Stage.GRAPH_CAPTURE, "graph_max_bs"),
    ],
)
def test_out_of_memory_is_judged_by_where_it_happened(until: str, stage: Stage, remedy: str) -> None:
    failure = of("\n".join([*start_up(until), *wrapped(OOM)]))
    assert (failure.kind, failure.cls, failure.stage) == ("torch-oom", "memory", stage)
    assert remedy in (failure.remedy or "")
    assert failure.facts == {"tried": "2.00 GiB"}


def test_only_the_caller_knows_that_it_served() -> None:
    failure = of("\n".join(wrapped(OOM)), stage=Stage.SERVE)
    assert failure.stage is Stage.SERVE
    assert "chunked_prefill" in (failure.remedy or "")


def test_too_small_and_too_large_a_share_of_memory_are_told_apart() -> None:
    too_small = of(
        "\n".join(
            wrapped(
                "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.7. "
                "Raise --mem-fraction-static "
                "above 0.823 (minimum viable = 0.822 + 0.001)."
            )
        )
    )
    assert too_small.stage is Stage.KV_SIZING
    assert too_small.facts == {"mem_fraction": 0.7, "min_mem_fraction": 0.823}
    assert "Raise mem_fraction" in (too_small.remedy or "")
    older = of("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.84")
    assert older.facts == {"mem_fraction": 0.84}
    assert "Raise" in (older.remedy or "")


def test_a_failed_capture_is_memory_only_when_memory_is_what_failed() -> None:
    chained = [
        "[2026-11-29 14:53:30 TP0] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "a.py", line 1, in capture',
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "CUDA kernel errors might be asynchronously reported at some other API call",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        '  File "b.py", line 2, in init',
        "Exception: Capture cuda graph failed: {}",
        "[2026-11-29 14:53:31] Received sigquit from a child process. It usually means the child failed.",
    ]
    log = "\n".join(chained)
    assert of(log.format("CUDA out of memory. Tried to allocate 448.00 MiB.")).kind == "sgl-graph-fail"
    assert of(log.format("CUDA error: an illegal memory access was encountered")).cls == "engine-bug"
    assert of(log.format("operation not permitted when stream is capturing")).kind == "sgl-graph-bug"


def test_the_replay_crash_of_the_drafter_is_known_by_its_frames() -> None:
    header = "[2026-11-29 14:53:30 TP3 EP3] Scheduler hit an exception: Traceback (most recent call last):"
    frames = '  File "/sglang/srt/speculative/dflash_worker.py", line 715, in forward\n    out = self.graph_runner.replay(batch)[0]'
    log = f"{header}\n{frames}\nTypeError: 'NoneType' object is not subscriptable"
    assert of(log, stage=Stage.SERVE).kind == "dflash-graph-none"
    assert of(log.replace("dflash_worker", "other_worker"), stage=Stage.SERVE).kind == "sgl-sched-exc"


def test_a_wrapper_shows_the_exception_that_it_hides() -> None:
    failure = of("\n".join(wrapped("KeyError: 'model.layers.61.weight'")))
    assert (failure.kind, failure.confidence, failure.consequence) == ("sgl-sched-exc", 0.5, Consequence.INFEASIBLE)
    assert failure.evidence[0] == "KeyError: 'model.layers.61.weight'"


def test_a_killed_child_is_told_from_one_that_crashed() -> None:
    line = "[2026-11-29 14:55:34] Subprocess scheduler_0 (pid=1706) crashed with exit code {}. Triggering SIGQUIT for cleanup..."
    killed, crashed = of(line.format(-9), exit_code=-3), of(line.format(-6), exit_code=-3)
    assert (killed.kind, killed.consequence) == ("sgl-subproc-killed", Consequence.TRANSIENT)
    assert (crashed.kind, crashed.consequence, crashed.facts["exit_code"]) == ("sgl-subproc", Consequence.INFEASIBLE, -6)


def test_ranks_that_died_of_each_other_are_tried_again() -> None:
    failure = of("\n".join(wrapped("x")[2:]))
    assert (failure.kind, failure.consequence) == ("gloo-closed", Consequence.TRANSIENT)


def test_an_exception_of_the_parent_that_nobody_knows_is_said() -> None:
    failure = of('Traceback (most recent call last):\n  File "x.py", line 3, in f\n    g()\nzmq.error.ZMQError: Protocol not supported\n')
    assert failure.kind == "unknown"
    assert "ZMQError: Protocol not supported" in failure.cause


@pytest.mark.parametrize(
    ("exit_code", "kind", "consequence", "says"),
    [
        (-9, "killed", Consequence.TRANSIENT, "memory of the host"),
        (137, "killed", Consequence.TRANSIENT, "memory of the host"),
        (-11, "unknown", Consequence.INFEASIBLE, "SIGSEGV"),
        (-250, "unknown", Consequence.INFEASIBLE, "signal 250"),
        (3, "unknown", Consequence.INFEASIBLE, "exit code 3"),
        (None, "hang", Consequence.INFEASIBLE, "stage graph-capture"),
    ],
)
def test_a_log_without_words(exit_code: int | None, kind: str, consequence: Consequence, says: str) -> None:
    log = "\n".join(start_up("Capture target prefill CUDA graph end"))
    failure = of(log, exit_code=exit_code)
    assert (failure.kind, failure.cls, failure.consequence) == (kind, "unknown", consequence)
    assert says in failure.cause
    assert failure.confidence <= 0.5
    assert failure.stage is Stage.GRAPH_CAPTURE
    assert 1 < len(failure.evidence) <= TAIL_LINES
    assert "Capturing" in failure.evidence[-1]


def test_an_empty_log_has_no_evidence() -> None:
    assert of("", exit_code=1).evidence == ()
    assert of("", exit_code=None, stage=Stage.LOAD).stage is Stage.LOAD


@pytest.mark.parametrize(
    ("line", "kind", "consequence"),
    [
        (
            "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): address already in use",
            "port",
            "host-broken",
        ),
        ("OSError: [Errno 28] No space left on device: '/root/.triton/cache'", "disk", "host-broken"),
        ("RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU", "no-cuda", "host-broken"),
        ("RuntimeError: No CUDA GPUs are available", "no-cuda", "host-broken"),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 12040)", "driver", "host-broken"),
        ("kernel: NVRM: Xid (PCI:0000:1a:00): 79, pid=1, GPU has fallen off the bus.", "xid", "host-broken"),
        ("kernel: NVRM: Xid (PCI:0000:1a:00): 13, pid=1, Graphics Exception", "xid-engine", "infeasible"),
        ("RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.", "mem-unbalanced", "transient"),
        ("ValueError: Currently DFLASH speculative decoding only supports pp_size == 1.", "pp-spec", "infeasible"),
        ("ValueError: Currently standalone speculative decoding does not support dp attention.", "spec-dp-attn", "infeasible"),
        ("ValueError: --speculative-draft-window-size must be positive, got -1.", "spec-size", "infeasible"),
        ("ValueError: DFLASH requires --speculative-dflash-block-size to be positive, got 0.", "spec-size", "infeasible"),
        ("ValueError: speculative_eagle_topk(10) > 1 with page_size(64) > 1 is unstable and produces", "spec-topk-page", "infeasible"),
        ("AssertionError: Please enable dp attention when setting enable_dp_lm_head.", "dp-lm-head", "infeasible"),
        ("launch_server.py: error: argument --tp-size: invalid int value: 'x'", "cli-value", "infeasible"),
    ],
)
def test_consequences_follow_what_has_to_change(line: str, kind: str, consequence: str) -> None:
    failure = of("\n".join([*start_up("Load weight begin"), *wrapped(line)]))
    assert (failure.kind, failure.consequence) == (kind, Consequence(consequence))
    assert failure.evidence[0] in line


def test_words_of_a_request_are_not_taken_for_the_engines() -> None:
    log = "[2026-11-29 14:53:30] Receive: obj=GenerateReqInput(text='why: CUDA out of memory. Tried to allocate 2.00 GiB'), rid='x'"
    assert of(log, exit_code=-11, stage=Stage.SERVE).kind == "unknown"


def test_the_catalogue_is_whole() -> None:
    assert len({rule.id for rule in rules()}) == len(rules())
    for rule in rules():
        for meaning in (rule.meaning, *rule.at.values()):
            assert meaning.cause.endswith("."), rule.id
            assert meaning.remedy.endswith((".", "host")), rule.id


# --- stages ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "stage"),
    [
        ("[2026-11-29 14:53:25] Init torch distributed begin.", Stage.DIST_INIT),
        ("[2026-01-29 00:51:38 DP0 TP0 EP0] Load weight begin. avail mem=94.13 GB", Stage.LOAD),
        ("[2026-11-29 14:53:29] Load weight end. elapsed=0.20 s, type=LlamaForCausalLM, avail mem=123.79 GB", Stage.KV_SIZING),
        ("[2026-01-29 00:51:38 TP3] Capture cuda graph begin. This can take up to several minutes.", Stage.GRAPH_CAPTURE),
        ("[2026-01-29 00:51:38 TP3] Capture draft extend cuda graph begin.", Stage.GRAPH_CAPTURE),
        ("[2026-11-29 14:53:38] Capture target verify CUDA graph begin. backend=full", Stage.GRAPH_CAPTURE),
        ("[2026-11-29 14:53:39] INFO:     Started server process [1254]", Stage.WARMUP),
        ("INFO:     Uvicorn running on http://127.0.0.1:31000 (Press CTRL+C to quit)", Stage.WARMUP),
        ("Nov 29 14:53:40 host python[12]: [2026-11-29 14:53:40] The server is fired up and ready to roll!", Stage.READY),
        ("[2026-11-29 14:55:33] SIGTERM received. signum=None frame=None.", Stage.STOP),
        ("[2026-11-29 14:53:04] server_args=ServerArgs(model_path='Load weight begin')", Stage.RESOLVE),
        ("[2026-11-29 14:53:35] Capture target decode CUDA graph end. elapsed=3.61 s", None),
        ("Capturing num tokens (num_tokens=8192 avail_mem=124.11 GB):   2%", None),
        ("", None),
    ],
)
def test_stage_markers(line: str, stage: Stage | None) -> None:
    assert SglangEngine().stage_of(line) is stage


@pytest.mark.parametrize("name", HEALTHY)
def test_a_real_launch_passes_every_stage(name: str) -> None:
    seen = list(dict.fromkeys(stage for line in healthy(name).splitlines() if (stage := stage_of(line))))
    capture = [] if "disable" in name else [Stage.GRAPH_CAPTURE]
    assert seen == [
        *(Stage.PARSE, Stage.RESOLVE, Stage.DIST_INIT, Stage.LOAD, Stage.KV_SIZING),
        *capture,
        *(Stage.WARMUP, Stage.READY, Stage.STOP),
    ]
    assert last_stage(healthy(name)) is Stage.READY
    assert reached(healthy(name), Stage.LOAD)
