"""Facts of a simulated host: its hardware from the host document, its model and drafter from what the package ships."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from autotuner.engines.simulated.profile import Profile, load_profile, profile_names
from autotuner.engines.simulated.setting import DRAFTER, TARGET, package_config
from autotuner.errors import UsageError
from autotuner.model.facts import DrafterFacts, EngineBuild, Gpu, HostFacts, ModelFacts
from autotuner.model.host import Host, Simulate
from autotuner.model.near import did_you_mean

_GIB = 2**30
CPUS = 64
MEMORY_GIB = 1024.0
DISK_FREE_GIB = 500.0


def simulated_facts(host: Host, build: EngineBuild) -> HostFacts:
    """What would be discovered on this host. Raises ``UsageError`` when its profile is not known or is that of other hardware."""
    simulate = host.simulate
    if simulate is None:
        raise UsageError(f"host {host.name} is not simulated", hint="give it a simulate: section, or discover it")
    checked_profile(host.name, simulate)
    gpu = simulate.gpu
    return HostFacts(
        gpus=tuple(
            Gpu(index=index, name=gpu.name, memory_gib=gpu.memory_gib, sm=gpu.sm, uuid=f"GPU-simulated-{index}")
            for index in range(gpu.count)
        ),
        driver=gpu.driver,
        link=gpu.link if gpu.count > 1 else "single",
        cpus=CPUS,
        memory_gib=MEMORY_GIB,
        disk_free_gib=DISK_FREE_GIB,
        model=_model(host),
        drafter=_drafter(host.model.drafter) if host.model.drafter else None,
        build=build,
        simulated=True,
    )


def checked_profile(name: str, simulate: Simulate) -> Profile:
    """The profile of host ``name``. Raises ``UsageError`` when it is not known, or when the hardware typed in is not the profile's."""
    known = profile_names()
    if simulate.profile not in known:
        raise UsageError(
            f"host {name}: simulate.profile {simulate.profile} is not known",
            hint=did_you_mean(simulate.profile, known, otherwise="profiles"),
        )
    profile, gpu = load_profile(simulate.profile), simulate.gpu
    for what, typed, fits in (("sm", gpu.sm, profile.sm), ("link", gpu.link, profile.link)):
        if typed != fits:
            raise UsageError(
                f"host {name}: simulate.gpu.{what} is {typed}, but profile {profile.name} was calibrated on {fits}",
                hint=f"set it to {fits}, or choose another profile",
            )
    return profile


def _model(host: Host) -> ModelFacts:
    config = package_config(TARGET)
    return ModelFacts(
        path=host.model.path,
        architecture=config["architectures"][0],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=1,
        hidden_size=config["hidden_size"],
        experts=config["n_routed_experts"],
        vocab_size=config["vocab_size"],
        context_max=host.model.context_length or config["max_position_embeddings"],
        weights_gib=_size_gib(config),
        digest=_digest(config),
    )


def _drafter(path: str) -> DrafterFacts:
    config = package_config(DRAFTER)
    return DrafterFacts(
        path=path,
        block_size=config["block_size"],
        layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        target_layers=config["num_target_layers"],
        target_layer_ids=tuple(config["dflash_config"]["target_layer_ids"]),
        mask_token_id=config["dflash_config"]["mask_token_id"],
        vocab_size=config["vocab_size"],
        dtype=config["torch_dtype"],
        weights_gib=_size_gib(config),
        digest=_digest(config),
    )


def _size_gib(config: Mapping[str, Any]) -> float:
    return round(float(config["simulated_size_bytes"]) / _GIB, 3)


def _digest(config: Mapping[str, Any]) -> str:
    return "sha256:" + hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def build_digest() -> str:
    """Of everything that decides how the simulated engine behaves: results of other versions of it are not comparable."""
    digest = hashlib.sha256()
    root = resources.files(__package__)
    for folder in (root, root.joinpath("profiles"), root.joinpath("models")):
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
            if entry.is_file() and entry.name.endswith((".py", ".toml", ".json")):
                digest.update(entry.name.encode() + b"\0" + entry.read_bytes())
    return "sha256:" + digest.hexdigest()[:16]
