"""SearchSpace: which configurations may be tried, written in concepts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from autotuner.model.document import Document, Name, Scalar, Strict

Concept = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
"""A tunable property of any engine (``tp``, ``block``, ``graphs``); how it becomes a flag is the engine's dialect."""

CONCEPTS: dict[str, str] = {
    "tp": "Tensor parallelism: GPUs that share every layer.",
    "pp": "Pipeline parallelism: stages of layers.",
    "ep": "Expert parallelism: groups among which the experts are spread.",
    "attn_dp": "Data parallelism of attention, within the tensor-parallel group.",
    "nodes": "Hosts that serve one engine.",
    "spec": "Speculative decoding: off, dflash, ddtree, eagle, ngram …",
    "block": "Block size of the drafter, anchor included.",
    "budget": "DDTree: non-root nodes that are verified per step.",
    "topk": "DDTree: candidates per position.",
    "window": "Tokens of context that the drafter attends to; none is all of it.",
    "graphs": "CUDA graphs for decoding.",
    "graph_max_bs": "Largest batch that is captured as a CUDA graph.",
    "mem_fraction": "Share of GPU memory for weights and KV cache.",
    "max_running": "Requests that run at once; more wait.",
    "chunked_prefill": "Prompt tokens that are prefilled per step; -1 is all of them.",
    "max_batched_tokens": "Tokens that one step may process (vLLM).",
    "kv_dtype": "Type of the KV cache.",
    "attention_backend": "Kernels of attention.",
    "draft_tokens": "Tokens drafted per step by algorithms that are not block-wise.",
    "prefix_caching": "Reuse of the KV cache of shared prompt prefixes.",
}
"""Every concept with its meaning. A dialect says how a build expresses it; a build may lack it."""


class Categorical(Strict):
    """One of a few choices, in no order."""

    type: Literal["categorical"]
    choices: tuple[Scalar, ...] = Field(min_length=1)
    when: str | None = None
    """The parameter exists only where this expression holds."""


class Int(Strict):
    """A whole number from ``low`` to ``high``, both included, in steps of ``step``."""

    type: Literal["int"]
    low: int
    high: int
    step: int = Field(default=1, ge=1)
    log: bool = False
    when: str | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Int:
        if self.low > self.high:
            msg = f"low <= high must hold, but low is {self.low} and high is {self.high}"
            raise ValueError(msg)
        if self.log and (self.low < 1 or self.step != 1):
            msg = f"log: true needs low >= 1 and no step, but low is {self.low} and step is {self.step}"
            raise ValueError(msg)
        return self


class Float(Strict):
    """A number from ``low`` to ``high``, both included; a grid when ``step`` is given."""

    type: Literal["float"]
    low: float
    high: float
    step: float | None = Field(default=None, gt=0)
    log: bool = False
    when: str | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Float:
        if self.low > self.high:
            msg = f"low <= high must hold, but low is {self.low:g} and high is {self.high:g}"
            raise ValueError(msg)
        if self.log and (self.low <= 0 or self.step is not None):
            msg = f"log: true needs low > 0 and no step, but low is {self.low:g} and step is {self.step}"
            raise ValueError(msg)
        return self


Parameter = Annotated[Categorical | Int | Float, Field(discriminator="type")]


class Constraint(Strict):
    """A condition that every configuration must meet, and the reason for it."""

    require: str
    """Holds, or cannot be decided because a parameter in it is inactive or a fact unknown."""
    why: str = ""


class SearchSpace(Document):
    """Which configurations may be tried (``search_spaces/NAME.yaml``)."""

    kind: Literal["SearchSpace"]
    engine: Literal["sglang", "vllm"]
    dialect: Name | None = Field(default=None, description="How this build expresses the concepts; probed when not given.")
    parameters: dict[Concept, Parameter] = Field(min_length=1)
    constraints: tuple[str | Constraint, ...] = ()
    fixed: dict[Concept, Scalar] = Field(default_factory=dict, description="Concepts with one value in every trial.")
    raw: dict[str, Scalar] = Field(default_factory=dict, description="Flags without a concept, passed on as written; true is a bare flag.")
    baseline: dict[Concept, Scalar] = Field(default_factory=dict, description="Trial 0 where no service runs.")
    seeds: tuple[dict[Concept, Scalar], ...] = Field(default=(), description="Configurations worth an early look.")

    def requirements(self) -> tuple[Constraint, ...]:
        """The constraints, all in the long form."""
        return tuple(Constraint(require=item) if isinstance(item, str) else item for item in self.constraints)
