"""How the engine's end looks in its log: tracebacks and the lines around them. Pure."""

from __future__ import annotations

from autotuner.engines.simulated.rules import Rejection

_SRT = "/sgl-workspace/sglang/python/sglang/srt"
_FOLDERS = {
    "server_args.py": "",
    "model_runner.py": "model_executor/",
    "deepseek_v2.py": "models/",
    "layer.py": "layers/moe/fused_moe_triton/",
    "dflash_worker.py": "speculative/",
    "ddtree_worker.py": "speculative/",
    "memory_pool_configurator.py": "model_executor/",
    "cuda_graph_runner.py": "model_executor/",
    "loader.py": "model_loader/",
    "scheduler.py": "managers/",
}
Frame = tuple[str, int, str, str]

_LAUNCH: tuple[Frame, ...] = (("scheduler.py", 3512, "run_scheduler_process", "scheduler = Scheduler("),)
_SERVE: tuple[Frame, ...] = (
    ("scheduler.py", 3541, "run_scheduler_process", "scheduler.event_loop_normal()"),
    ("scheduler.py", 1208, "event_loop_normal", "result = self.run_batch(batch)"),
    ("scheduler.py", 2377, "run_batch", "batch_result = self.model_worker.forward_batch_generation(batch)"),
)
_BY_STAGE: dict[str, tuple[Frame, ...]] = {
    "dist-init": (*_LAUNCH, ("model_runner.py", 702, "initialize", "self.init_torch_distributed()")),
    "load": (*_LAUNCH, ("loader.py", 641, "load_model", "model = _initialize_model(model_config, self.load_config)")),
    "kv-sizing": (*_LAUNCH, ("memory_pool_configurator.py", 96, "configure", "self.size_pools(available)")),
    "graph-capture": (*_LAUNCH, ("cuda_graph_runner.py", 603, "__init__", "self.capture()")),
    "serve": _SERVE,
}


def refusal(rejection: Rejection) -> str:
    """What a launch prints whose arguments are refused before anything was started."""
    frames = [
        '  File "<frozen runpy>", line 198, in _run_module_as_main',
        '  File "<frozen runpy>", line 88, in _run_code',
        f'  File "{_SRT.removesuffix("/srt")}/launch_server.py", line 49, in <module>',
        "    server_args = prepare_server_args(sys.argv[1:])",
        *_frame(("server_args.py", 5733, "prepare_server_args", "return ServerArgs.from_cli_args(raw_args)")),
        *_frame(rejection.source or ("server_args.py", 912, "__post_init__", "self._handle_speculative_decoding()")),
    ]
    return "\n".join(["Traceback (most recent call last):", *frames, rejection.message])


def scheduler_exception(stage: str, message: str, source: Frame | None = None) -> str:
    """What the scheduler prints when it dies at ``stage``; stands after the time and the rank."""
    frames = [line for frame in (*_BY_STAGE[stage], *([source] if source else [])) for line in _frame(frame)]
    return "\n".join(["Scheduler hit an exception: Traceback (most recent call last):", *frames, message, ""])


SIGQUIT = "Received sigquit from a child process. It usually means the child failed."


def _frame(frame: Frame) -> list[str]:
    file, line, function, code = frame
    return [f'  File "{_SRT}/{_FOLDERS.get(file, "")}{file}", line {line}, in {function}', f"    {code}"]
