"""The simulated build's command line: SGLang's flags and aliases, of the 0.5.12 line patched with draft trees, as argparse reads them."""

from __future__ import annotations

import argparse
from typing import NoReturn

VERSION = "0.5.12+ddtree.simulated"
UNSHOWN = ("simulate", "api_key")
"""Arguments that neither the log nor ``/server_info`` shows."""

_KV_DTYPES = ("auto", "fp8_e5m2", "fp8_e4m3", "bf16", "bfloat16")
_ATTENTION = ("triton", "flashinfer", "trtllm_mla", "flashmla", "cutlass_mla", "fa3", "fa4", "torch_native")
_POLICIES = ("lpm", "random", "fcfs", "dfs-weight", "lof", "priority")
_MOE_RUNNERS = ("auto", "deep_gemm", "triton", "flashinfer_trtllm", "flashinfer_cutlass", "cutlass", "marlin")
_PARSERS = ("auto", "kimi", "kimi_k2")


class EngineParser(argparse.ArgumentParser):
    """Refuses as SGLang does: usage and one line on standard error, exit code 2."""

    def error(self, message: str) -> NoReturn:
        """End with what argparse found wrong."""
        self.print_usage()
        self.exit(2, f"{self.prog}: error: {message}\n")


def build_parser() -> argparse.ArgumentParser:
    """Every flag that the simulated build accepts. What is not here is unknown to it."""
    parser = EngineParser(prog="sglang serve", description="A simulated SGLang server.")
    parser.add_argument("--simulate", metavar="JSON", help="What to simulate, as JSON: the part of a host document of that name.")
    parser.add_argument("--version", action="version", version=VERSION)
    _model(parser)
    _server(parser)
    _memory(parser)
    _parallel(parser)
    _graphs(parser)
    _speculative(parser)
    return parser


def _model(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("model").add_argument
    add("--model-path", "--model", required=True, help="The path of the model weights.")
    add("--tokenizer-path", help="The path of the tokenizer.")
    add("--trust-remote-code", action="store_true", help="Allow modeling files of the model's own.")
    add("--context-length", type=int, help="The model's maximum context length.")
    add("--dtype", choices=("auto", "half", "float16", "bfloat16", "float", "float32"), default="auto", help="Data type of the weights.")
    add("--quantization", help="The quantization method.")
    add("--kv-cache-dtype", choices=_KV_DTYPES, default="auto", help="Data type of the KV cache.")
    add("--random-seed", type=int, help="The random seed.")
    add("--attention-backend", choices=_ATTENTION, help="Kernels of the attention layers; changes nothing here.")
    add("--moe-runner-backend", choices=_MOE_RUNNERS, default="auto", help="Kernels of the experts; changes nothing here.")
    add("--reasoning-parser", choices=_PARSERS, help="Parser of reasoning; changes nothing here.")
    add("--tool-call-parser", choices=_PARSERS, help="Parser of tool calls; changes nothing here.")


def _server(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("server").add_argument
    add("--host", default="127.0.0.1", help="The address to listen on.")
    add("--port", type=int, default=30000, help="The port to listen on.")
    add("--served-model-name", help="The name under which the model is served.")
    add("--api-key", help="Key that requests must carry.")
    add("--log-level", default="info", help="The logging level.")
    add("--decode-log-interval", type=int, default=40, help="Decode steps between two lines about the batch.")
    add("--skip-server-warmup", action="store_true", help="If set, skip warmup.")
    add("--enable-metrics", action="store_true", help="Serve Prometheus metrics.")
    add("--enable-cache-report", action="store_true", help="Return the number of cached tokens in the usage of each request.")
    add("--watchdog-timeout", type=float, default=300, help="Seconds after which a stuck forward pass ends the server.")
    add("--stream-interval", type=int, default=1, help="Tokens between two chunks; steps set the pace here.")


def _memory(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("memory and scheduling").add_argument
    add("--mem-fraction-static", type=float, help="Share of GPU memory for weights and KV cache.")
    add("--max-running-requests", type=int, help="The maximum number of running requests.")
    add("--max-total-tokens", type=int, help="The maximum number of tokens in the KV cache.")
    add("--chunked-prefill-size", type=int, help="The maximum number of tokens in a chunk of a prefill; -1 disables chunks.")
    add("--max-prefill-tokens", type=int, default=16384, help="The maximum number of tokens in a prefill batch.")
    add("--page-size", type=int, default=1, help="The number of tokens in a page.")
    add("--schedule-policy", choices=_POLICIES, default="fcfs", help="The scheduling policy; first come, first served here.")
    add("--schedule-conservativeness", type=float, default=1.0, help="How conservative the scheduling is; changes nothing here.")
    add("--disable-radix-cache", action="store_true", help="Disable the prefix cache.")
    add("--disable-overlap-schedule", action="store_true", help="Disable the overlap scheduler; changes nothing here.")
    add("--num-continuous-decode-steps", type=int, default=1, help="Accepted and never read, as in the real engine.")


def _parallel(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("parallelism").add_argument
    add("--tensor-parallel-size", "--tp-size", dest="tp_size", type=int, default=1, help="The tensor parallelism size.")
    add("--pipeline-parallel-size", "--pp-size", dest="pp_size", type=int, default=1, help="The pipeline parallelism size.")
    add("--expert-parallel-size", "--ep-size", "--ep", dest="ep_size", type=int, default=1, help="The expert parallelism size.")
    add("--nnodes", type=int, default=1, help="The number of nodes.")
    add("--disable-custom-all-reduce", action="store_true", help="Disable the custom all-reduce; changes nothing here.")
    add("--enable-p2p-check", action="store_true", help="Check peer access between GPUs; changes nothing here.")


def _graphs(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("CUDA graphs").add_argument
    add("--disable-cuda-graph", action="store_true", help="Disable cuda graph.")
    add("--cuda-graph-max-bs", type=int, help="The largest batch to capture; larger ones run without a graph.")
    add("--cuda-graph-bs", type=int, nargs="+", help="The batches to capture.")


def _speculative(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("speculative decoding").add_argument
    add("--speculative-algorithm", help="Speculative algorithm: DFLASH or DDTREE.")
    add("--speculative-draft-model-path", "--speculative-draft-model", help="The path of the drafter.")
    add("--speculative-num-draft-tokens", type=int, help="The number of tokens drafted; the same as the block size for DFLASH.")
    add("--speculative-dflash-block-size", type=int, help="Block of the drafter, anchor included.")
    add(
        "--speculative-draft-window-size",
        "--speculative-dflash-draft-window-size",
        type=int,
        help="Tokens of context that the drafter sees; all when not given.",
    )
    add("--speculative-ddtree-budget", type=int, help="Nodes of the draft tree without its root; one less than the block by default.")
    add("--speculative-ddtree-topk", type=int, help="Candidates per position of the draft tree; 4 by default.")
    add("--speculative-draft-attention-backend", choices=("triton", "flashinfer", "fa3", "fa4"), help="Changes nothing here.")
