"""Acceptance length: tokens that one step of the target yields when a drafter proposes them. Pure.

A position is accepted with a probability that drafts as wide as a chain have, and that a tree raises; the product over the depth is
summed. Positions beyond the depth that the drafter was trained for are out of distribution, and so is a block of another size.
"""

from __future__ import annotations

import math

from autotuner.engines.simulated.profile import Acceptance, Profile
from autotuner.engines.simulated.serving import Serving

_TRAINED_BUDGET = 8
"""Budget at which the constants of a profile were taken."""
_REFERENCE_TOPK = 4


def acceptance_length(profile: Profile, serving: Serving, *, context: float, domain: str = "code") -> float:
    """Mean tokens per step and request, 1 without speculation. ``context`` counts the tokens before the draft."""
    if not serving.speculative:
        return 1.0
    constants = profile.acceptance
    position = _position_probability(constants, serving)
    drafted = sum(_chain(constants, position, serving))
    return 1.0 + drafted * _context_factor(constants, serving, context) * profile.domains.get(domain, 1.0)


def _position_probability(constants: Acceptance, serving: Serving) -> float:
    miss = 1.0 - constants.chain
    if serving.spec == "ddtree":
        miss *= math.exp(-_tree_gain(constants, serving))
    doublings = math.log2(serving.block / (constants.trained_depth + 1))
    loss = constants.larger_block if doublings > 0 else -constants.smaller_block * doublings
    return (1.0 - miss) * max(0.0, 1.0 - loss)


def _tree_gain(constants: Acceptance, serving: Serving) -> float:
    """How much likelier a position is to hold the right token in a tree than in a chain, as a logarithm of the misses."""
    nearest = constants.tree_gain * (1.0 - math.exp(-serving.budget / constants.tree_scale)) * _topk_share(serving)
    growth = constants.tree_growth * max(0.0, math.log2(serving.budget / _TRAINED_BUDGET))
    return nearest + growth


def _topk_share(serving: Serving) -> float:
    """1 at top-k 4. A small budget has no room for many candidates, and later ones rarely hold the right token."""
    width = min(serving.topk, 2 + serving.budget // 4)
    return (1.0 - math.pow(width, -1.2)) / (1.0 - math.pow(_REFERENCE_TOPK, -1.2))


def _chain(constants: Acceptance, position: float, serving: Serving) -> list[float]:
    """Probability that the draft is right up to each depth. A tree of ``budget`` nodes is no deeper than that."""
    depth = serving.block - 1
    if serving.spec == "ddtree":
        depth = min(depth, serving.budget)
    reached, right = [], 1.0
    for at in range(1, depth + 1):
        right *= position if at <= constants.trained_depth else constants.beyond
        reached.append(right)
    return reached


def _context_factor(constants: Acceptance, serving: Serving, context: float) -> float:
    """Drafts get worse with context, less so in large trees; a window helps the drafter until it hides too much."""
    budget = serving.budget if serving.spec == "ddtree" else _TRAINED_BUDGET
    width = math.pow(max(1.0, budget / _TRAINED_BUDGET), constants.context_budget)
    reach = constants.context_tokens * width
    seen = context if serving.window is None else min(context, serving.window)
    factor = 1.0 / (1.0 + seen / reach)
    if serving.window is not None and context > serving.window:
        factor *= 1.0 - constants.window_loss / width * math.exp(-serving.window / constants.window_tokens)
    return factor
