"""The pure model against every number that was measured by hand, and the conclusions that were drawn from them."""

from __future__ import annotations

import csv
from dataclasses import replace
from importlib.resources import files
from itertools import product

import pytest

from autotuner.engines.simulated.acceptance import acceptance_length
from autotuner.engines.simulated.memory import weights_gib
from autotuner.engines.simulated.profile import Profile, load_profile
from autotuner.engines.simulated.serving import Serving
from tests.simulated_speed import decode_tok_s, request_tok_s, served_tok_s

ROWS = list(csv.DictReader(files("autotuner.engines.simulated").joinpath("origin_cells.csv").read_text().splitlines()))
CT200, B300 = load_profile("ct200"), load_profile("b300")
PARALLEL = {"TP8": Serving(ep=1), "EP8": Serving(ep=8), "EP4": Serving(ep=4), "PP8": Serving(tp=1, pp=8)}
SWEPT = [Serving(ep=8, spec="ddtree", block=8, budget=budget, topk=topk) for budget, topk in product((4, 8, 12, 16), (4, 6))]
SWEPT += [Serving(ep=8, spec="ddtree", block=16, budget=budget, topk=8) for budget in (16, 32)]


def serving_of(row: dict[str, str]) -> Serving:
    given = {name: int(row[name]) for name in ("tp", "pp", "ep", "block", "budget", "topk", "window") if row[name]}
    return Serving(graphs=row["graphs"] == "on", spec=row["spec"], **given)


def value_of(profile: Profile, row: dict[str, str]) -> float:
    serving, context, batch = serving_of(row), float(row["context"]), int(row["concurrency"])
    domain = row["domain"]

    def decode(serving: Serving) -> float:
        return decode_tok_s(profile, serving, batch=batch, context=context, domain=domain)

    accepted = acceptance_length(profile, serving, context=context, domain=domain)
    return {
        "decode_tok_s": lambda: decode(serving),
        "graph_speedup": lambda: decode(serving) / decode(replace(serving, graphs=False)),
        "speedup": lambda: decode(serving) / decode(replace(serving, spec="off", graphs=True)),
        "request_tok_s": lambda: request_tok_s(profile, serving, prompt=int(context), answer=int(row["output_tokens"]), domain=domain),
        "acceptance_length": lambda: accepted,
        "acceptance_rate": lambda: (accepted - 1) / (serving.verify_tokens - 1),
        "weights_gib": lambda: weights_gib(profile, serving),
    }[row["metric"]]()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(row[key] or "_" for key in row if key not in ("assumption", "tolerance")))
def test_row(row: dict[str, str]) -> None:
    target, tolerance = float(row["target"]), float(row["tolerance"])
    assert value_of(load_profile(row["host"]), row) == pytest.approx(target, rel=tolerance)


def test_most_rows_are_held_to_ten_percent_and_every_wider_one_says_why() -> None:
    wide = [row for row in ROWS if float(row["tolerance"]) > 0.10]
    assert len(wide) <= 3
    assert all("notes give" in row["assumption"] or "as for" in row["assumption"] for row in wide)


def best(profile: Profile, servings: list[Serving], *, concurrency: int, prompt: int) -> Serving:
    return max(servings, key=lambda serving: served_tok_s(profile, serving, concurrency=concurrency, prompt=prompt, answer=512))


def test_latency_wants_block_8_budget_8_topk_4() -> None:
    chosen = best(CT200, SWEPT, concurrency=1, prompt=60)
    assert (chosen.block, chosen.budget, chosen.topk) == (8, 8, 4)


def test_acceptance_and_the_longest_contexts_want_block_16_budget_32_topk_8() -> None:
    accepts = max(SWEPT, key=lambda serving: acceptance_length(CT200, serving, context=60))
    windows = [replace(serving, window=window) for serving in SWEPT for window in (None, 512, 1024, 2048, 4096)]
    longest = best(CT200, windows, concurrency=1, prompt=15_000)
    for chosen in (accepts, longest):
        assert (chosen.block, chosen.budget, chosen.topk) == (16, 32, 8)


@pytest.mark.parametrize("concurrency", [128, 256])
def test_throughput_wants_block_8_budget_4_topk_4(concurrency: int) -> None:
    chosen = best(CT200, [*SWEPT, *PARALLEL.values()], concurrency=concurrency, prompt=60)
    assert (chosen.block, chosen.budget, chosen.topk) == (8, 4, 4)
    assert chosen.speculative


@pytest.mark.parametrize("concurrency", [128, 256])
def test_over_pcie_experts_are_best_spread_at_high_concurrency(concurrency: int) -> None:
    assert best(CT200, list(PARALLEL.values()), concurrency=concurrency, prompt=60) is PARALLEL["EP4"]


@pytest.mark.parametrize(("concurrency", "context"), list(product((1, 8, 64, 128, 256), (60, 4096))))
def test_over_nvlink_layers_are_best_split(concurrency: int, context: int) -> None:
    assert best(B300, list(PARALLEL.values()), concurrency=concurrency, prompt=context) is PARALLEL["TP8"]
    drafting = [replace(PARALLEL[name], spec="ddtree", window=2048) for name in ("TP8", "EP8", "EP4")]
    assert best(B300, drafting, concurrency=concurrency, prompt=context).ep == 1


@pytest.mark.parametrize("profile", [CT200, B300], ids=lambda profile: profile.name)
@pytest.mark.parametrize(("concurrency", "context"), list(product((1, 8, 64, 256), (60, 4096))))
def test_pipelines_are_best_nowhere(profile: Profile, concurrency: int, context: int) -> None:
    assert best(profile, list(PARALLEL.values()), concurrency=concurrency, prompt=context) is not PARALLEL["PP8"]


def test_what_is_best_without_speculation_is_not_best_with_it() -> None:
    drafting = [replace(PARALLEL[name], spec="ddtree") for name in ("TP8", "EP8", "EP4")]
    for concurrency in (1, 128):
        assert best(CT200, drafting, concurrency=concurrency, prompt=60).ep == 8
    assert best(CT200, list(PARALLEL.values()), concurrency=1, prompt=60) is PARALLEL["TP8"]


@pytest.mark.parametrize("concurrency", [128, 256])
def test_dflash_pays_at_one_request_and_costs_at_full_batch(concurrency: int) -> None:
    dflash = Serving(ep=8, spec="dflash", graphs=False)
    for plain in (PARALLEL["EP8"], PARALLEL["EP4"]):
        assert decode_tok_s(CT200, dflash, batch=1, context=60) > 1.2 * decode_tok_s(CT200, plain, batch=1, context=60)
        assert decode_tok_s(CT200, dflash, batch=concurrency, context=60) < decode_tok_s(CT200, plain, batch=concurrency, context=60)
