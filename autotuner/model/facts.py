"""Facts: what was discovered on a host, and the fingerprint that makes trials comparable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from autotuner.model.document import Scalar
from autotuner.model.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as the driver reports it."""

    index: int
    name: str
    memory_gib: float
    sm: int
    """Compute capability times ten: 90 is Hopper, 103 is B300, 120 is RTX PRO 6000 Blackwell."""
    uuid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What the headers of a checkpoint's safetensors files say; the files were not read further."""

    files: int
    bytes: int
    """Of the tensors."""
    elements: Mapping[str, int]
    """Data type as safetensors names it (``BF16``, ``F8_E4M3`` …) → stored elements. Packed types (``I32``, ``U8``) hold several
    parameters in one."""
    problems: tuple[str, ...] = ()
    """What is damaged or missing, by file."""

    @property
    def parameters(self) -> int:
        """Stored elements of all types together."""
        return sum(self.elements.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What a checkpoint's ``config.json`` says; ``None`` where it says nothing."""

    path: str
    architecture: str | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    hidden_size: int | None = None
    experts: int | None = None
    vocab_size: int | None = None
    context_max: int | None = None
    weights_gib: float | None = None
    digest: str = ""
    """Of ``config.json`` and the names and sizes of the weight files."""
    weights: Weights | None = None
    """``None`` for a checkpoint that is not in safetensors files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterFacts:
    """What a DFlash drafter's ``config.json`` says; ``None`` where it says nothing."""

    path: str
    block_size: int | None = None
    """Block it was trained at, anchor included: 8 means that seven tokens are drafted."""
    layers: int | None = None
    hidden_size: int | None = None
    target_layers: int | None = None
    target_layer_ids: tuple[int, ...] = ()
    mask_token_id: int | None = None
    vocab_size: int | None = None
    dtype: str | None = None
    weights_gib: float | None = None
    digest: str = ""
    weights: Weights | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBuild:
    """The engine as installed: version, a digest of its files (hand-patched builds exist) and the flags it accepts."""

    engine: str
    version: str
    digest: str
    flags: Mapping[str, tuple[str, ...]]
    """Every option string (``--tp-size`` and its aliases) → its choices, or ``()`` when any value is accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Everything that was discovered before the first launch."""

    gpus: tuple[Gpu, ...]
    driver: str
    """``580.159.03``; the fingerprint keeps major and minor."""
    link: str
    """``nvlink``, ``pcie`` or ``single``."""
    cpus: int
    memory_gib: float
    disk_free_gib: float
    model: ModelFacts
    drafter: DrafterFacts | None
    build: EngineBuild
    simulated: bool = False
    machine: Machine | None = None
    """The state of the machine when it was looked over: for people and for checks, never part of the fingerprint."""

    @property
    def context_served(self) -> int | None:
        """Longest context in tokens that the model's own configuration allows."""
        return self.model.context_max

    def names(self) -> dict[str, Scalar | None]:
        """The facts that expressions in a search space may name; ``None`` means not known on this host."""
        first = self.gpus[0] if self.gpus else None
        drafter = self.drafter
        return {
            "gpus": len(self.gpus),
            "gpu_memory_gib": min((gpu.memory_gib for gpu in self.gpus), default=None),
            "sm": first.sm if first else None,
            "nvlink": self.link == "nvlink",
            "cpus": self.cpus,
            "heads": self.model.heads,
            "kv_heads": self.model.kv_heads,
            "layers": self.model.layers,
            "experts": self.model.experts,
            "hidden_size": self.model.hidden_size,
            "context_max": self.model.context_max,
            "weights_gib": self.model.weights_gib,
            "has_drafter": drafter is not None,
            "drafter_block": drafter.block_size if drafter else None,
            "drafter_layers": drafter.layers if drafter else None,
        }

    @property
    def fingerprint(self) -> Fingerprint:
        """What must be equal for trials to be comparable."""
        drafter = self.drafter
        return Fingerprint(
            gpu=self.gpus[0].name if self.gpus else "none",
            gpus=len(self.gpus),
            link=self.link,
            driver=".".join(self.driver.split(".")[:2]),
            engine=self.build.engine,
            engine_version=self.build.version,
            engine_digest=self.build.digest,
            model=self.model.digest,
            drafter=drafter.digest if drafter else "none",
            simulated=self.simulated,
        )


FACT_NAMES: tuple[str, ...] = (
    "gpus",
    "gpu_memory_gib",
    "sm",
    "nvlink",
    "cpus",
    "heads",
    "kv_heads",
    "layers",
    "experts",
    "hidden_size",
    "context_max",
    "weights_gib",
    "has_drafter",
    "drafter_block",
    "drafter_layers",
)
"""Names that ``when:`` and ``constraints:`` may use beside the space's own parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What must be equal for trials to be comparable; the driver's patch level is recorded elsewhere, not compared."""

    gpu: str
    gpus: int
    link: str
    driver: str
    engine: str
    engine_version: str
    engine_digest: str
    model: str
    drafter: str
    simulated: bool

    def as_dict(self) -> dict[str, Scalar]:
        """Plain values, in field order."""
        return asdict(self)

    @property
    def digest(self) -> str:
        """``sha256:`` and sixteen hex digits."""
        text = json.dumps(self.as_dict(), sort_keys=True)
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()[:16]
