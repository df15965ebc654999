"""Setting: which host and launch a simulated server plays.

The JSON of ``--simulate`` is the part of a host document of that name. The server reads it without pydantic, whose import would be most
of its start; the host document was checked before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from autotuner.engines.simulated.profile import Profile, load_profile, profile_names
from autotuner.engines.simulated.rules import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault to inject; ``model.host.SimulatedFault`` says what each field means."""

    kind: str
    after_requests: int = 0
    requests: int | None = 1
    seconds: float = 0.0
    launch: str | None = None

    def strikes(self, request: int) -> bool:
        """Whether it strikes completion request number ``request``, counted from 0."""
        return self.after_requests <= request and (self.requests is None or request < self.after_requests + self.requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted:
    """An answer to certain prompts; ``model.host.SimulatedAnswer`` says what each field means."""

    asked: str
    answer: str
    launch: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a simulated server plays."""

    profile: Profile
    gpus: int
    memory_gib: float
    launch_seconds: float
    noise: float
    seed: int
    launch: str
    """Name of the launch: launches of other names have other noise."""
    faults: tuple[Fault, ...]
    answers: tuple[Scripted, ...]
    world: World
    model_architecture: str

    def scripted(self, prompt: str) -> str | None:
        """What is to be said to this prompt; ``None`` when anything will do."""
        return next((scripted.answer for scripted in self.answers if scripted.asked in prompt), None)


@cache
def package_config(name: str) -> Mapping[str, Any]:
    """A ``config.json`` that the package ships for a simulated checkpoint; ``simulated_size_bytes`` is the size of its weights."""
    text = resources.files(__package__).joinpath("models", f"{name}.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


TARGET = "kimi_k26"
DRAFTER = "dflash_drafter"


def parse_setting(text: str, *, launch: str = "") -> Setting:
    """The setting of a launch of this name. Raises ``ValueError`` with what is wrong."""
    simulate = json.loads(text)
    if not isinstance(simulate, dict):
        msg = "an object is expected"
        raise ValueError(msg)  # noqa: TRY004 - one error for whatever is wrong with the text
    try:
        profile = load_profile(str(simulate["profile"]))
        gpu = simulate["gpu"]
        faults = tuple(Fault(**fault) for fault in simulate.get("faults", ()))
        answers = tuple(Scripted(**answer) for answer in simulate.get("answers", ()))
        count, memory_gib = int(gpu["count"]), float(gpu["memory_gib"])
    except KeyError as error:
        msg = f"{error} is missing, or no profile (profiles: {', '.join(profile_names())})"
        raise ValueError(msg) from error
    except TypeError as error:
        raise ValueError(str(error)) from error
    return Setting(
        profile=profile,
        gpus=count,
        memory_gib=memory_gib,
        launch_seconds=float(simulate.get("launch_seconds", 1.0)),
        noise=float(simulate.get("noise", 0.01)),
        seed=int(simulate.get("seed", 0)),
        launch=launch,
        faults=tuple(fault for fault in faults if fault.launch is None or fault.launch in launch),
        answers=tuple(answer for answer in answers if answer.launch is None or answer.launch in launch),
        world=_world(count),
        model_architecture=str(package_config(TARGET)["architectures"][0]),
    )


def _world(gpus: int) -> World:
    target, drafter = package_config(TARGET), package_config(DRAFTER)
    return World(
        gpus=gpus,
        heads=target["num_attention_heads"],
        experts=target["n_routed_experts"],
        context_max=target["max_position_embeddings"],
        drafter_block=drafter["block_size"],
    )
