"""Whether a drafter belongs to a model, and whether a search space asks for what it was trained for."""

from __future__ import annotations

from autotuner.model.facts import DrafterFacts, ModelFacts
from autotuner.model.recommendation import Check
from autotuner.model.space import Categorical, Float, Int, SearchSpace

_NEED_DRAFTER = ("dflash", "ddtree", "eagle", "eagle3", "standalone")


def check_drafter(drafter: DrafterFacts | None, model: ModelFacts, space: SearchSpace) -> tuple[Check, ...]:
    """Everything that can be known before a launch; empty when the space never drafts. Facts that are ``None`` are not judged."""
    wanted = [str(value) for value in _values(space, "spec") if value in _NEED_DRAFTER]
    if not wanted:
        return ()
    if drafter is None:
        return (
            Check(
                name="drafter",
                status="fail",
                detail=f"search space {space.name} asks for {', '.join(wanted)}, but the host names no drafter",
                hint="set model.drafter of the host, or search without speculation",
            ),
        )
    problems = (*_mask_token(drafter, model), *_layers(drafter, model), *_hidden_size(drafter, model), *_block(drafter, space))
    return problems or (Check(name="drafter", status="pass", detail=f"{drafter.path} fits {model.path}"),)


def _mask_token(drafter: DrafterFacts, model: ModelFacts) -> tuple[Check, ...]:
    mask, size = drafter.mask_token_id, model.vocab_size
    if mask is None or size is None or 0 <= mask < size:
        return ()
    return (_mismatch(f"its mask token {mask} is outside the model's vocabulary of {size}", drafter),)


def _layers(drafter: DrafterFacts, model: ModelFacts) -> tuple[Check, ...]:
    layers = model.layers
    if layers is None:
        return ()
    beyond = [layer for layer in drafter.target_layer_ids if not 0 <= layer < layers]
    found = [_mismatch(f"it reads layers {', '.join(map(str, beyond))}, but the model has {layers}", drafter)] if beyond else []
    if drafter.target_layers is not None and drafter.target_layers != layers:
        found.append(_mismatch(f"it was made for a model of {drafter.target_layers} layers, but this one has {layers}", drafter))
    return tuple(found)


def _hidden_size(drafter: DrafterFacts, model: ModelFacts) -> tuple[Check, ...]:
    theirs, ours = drafter.hidden_size, model.hidden_size
    if theirs is None or ours is None or theirs == ours:
        return ()
    return (_mismatch(f"its hidden size is {theirs}, the model's is {ours}", drafter),)


def _block(drafter: DrafterFacts, space: SearchSpace) -> tuple[Check, ...]:
    trained = drafter.block_size
    beyond = [value for value in _values(space, "block") if trained is not None and not isinstance(value, str) and value > trained]
    if not beyond:
        return ()
    return (
        Check(
            name="drafter-block",
            status="warning",
            detail=f"search space {space.name} goes to block {max(beyond):g}, but the drafter was trained at block {trained}",
            hint="deeper positions are guesses that it never learned; they cost time and are seldom accepted",
        ),
    )


def _mismatch(detail: str, drafter: DrafterFacts) -> Check:
    return Check(
        name="drafter", status="fail", detail=f"{drafter.path}: {detail}", hint="set model.drafter of the host to the drafter of this model"
    )


def _values(space: SearchSpace, concept: str) -> tuple[bool | int | float | str, ...]:
    """Values that a concept may take in a space: its choices, or the ends of its range."""
    if concept in space.fixed:
        return (space.fixed[concept],)
    parameter = space.parameters.get(concept)
    if isinstance(parameter, Categorical):
        return parameter.choices
    if isinstance(parameter, Int | Float):
        return (parameter.low, parameter.high)
    return ()
