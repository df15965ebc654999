from __future__ import annotations

import pytest

from autotuner.decide.finalists import best_measured, best_predicted, finalists
from autotuner.decide.healthchecks import check_recommendation
from autotuner.decide.recommend import Case, recommend, why_nothing
from autotuner.decide.surrogate import Surrogate, starts_probability
from autotuner.decide.verdict import decide
from autotuner.documents import dump
from autotuner.model.document import Metadata
from autotuner.model.events import Phase
from autotuner.model.host import EngineInstall
from autotuner.model.recommendation import Verdict
from autotuner.model.workload import Slo, Workload
from tests import builders as b

BASE, FAST = b.config(), b.config(spec="dflash", block=8, window="none")
OTHER = b.config(spec="dflash", block=12, window="none")


def explored(fast=1.4):
    return [
        b.measured(0, BASE, (100.0, 100.0, 1000.0), Phase.BASELINE),
        b.measured(1, FAST, (100.0 * fast, 40.0, 1100.0)),
        b.failed(2, b.config(graphs=False)),
    ]


def confirmed(rounds, fast=1.4, jitter=0.01):
    launches = explored(fast)
    for number in range(rounds):
        wobble = 1 + jitter * (-1) ** number
        launches.append(b.measured(10 + 2 * number, BASE, (100.0 * wobble, 100.0, 1000.0 * wobble), Phase.CONFIRM))
        launches.append(b.measured(11 + 2 * number, FAST, (100.0 * fast * wobble**2, 40.0, 1000.0 * wobble**2), Phase.CONFIRM))
    return launches


def case(trials, **changes):
    values = {
        "host": b.host(),
        "study": "lab--smol--one-gpu",
        "tool": "autotuner 0.1.0",
        "driver": "580.159.03",
        "fingerprint": "sha256:0",
        "fingerprint_fields": b.facts().fingerprint.as_dict(),
        "facts": b.facts().names(),
        "simulated": False,
        "trials": trials,
        "baseline": BASE,
        "space": b.space(),
        "measuring_flags": ("--enable-metrics",),
    }
    return Case(**{**values, **changes})


def test_four_interleaved_pairs_that_agree_are_an_improvement():
    found = decide(b.LATENCY, confirmed(4), BASE)
    assert (found.verdict, found.config) == (Verdict.IMPROVED, FAST)
    assert found.comparison.ratio == pytest.approx(1.4, rel=0.02)


def test_fewer_pairs_are_never_called_improved_whatever_the_difference():
    assert decide(b.LATENCY, confirmed(1, fast=10.0), BASE).verdict is Verdict.INCONCLUSIVE


def test_two_rounds_suffice_with_a_pooled_variance_of_enough_configurations():
    trials = confirmed(2)
    for number in (30, 31):
        trials.append(b.measured(number, OTHER, (90.0 + number / 10, 40.0, 900.0), Phase.CONFIRM))
    found = decide(b.LATENCY, trials, BASE)
    assert found.verdict is Verdict.IMPROVED
    assert found.comparison.method == "pooled"


def test_no_difference_keeps_what_runs():
    found = decide(b.THROUGHPUT, confirmed(4), BASE)
    assert (found.verdict, found.config) == (Verdict.NO_SIGNIFICANT_CHANGE, BASE)
    assert "keep what runs" in found.reason


def test_a_baseline_that_was_never_beaten_needs_no_confirmation():
    found = decide(b.LONG, explored(), BASE)
    assert (found.verdict, found.config) == (Verdict.NO_SIGNIFICANT_CHANGE, BASE)


def test_a_finalist_that_fails_when_launched_again_is_inconclusive_and_says_so():
    trials = [*explored(), b.failed(20, FAST, Phase.CONFIRM)]
    found = decide(b.LATENCY, trials, BASE)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "failed when it was launched again (trial 20)" in found.reason


def test_without_a_baseline_nothing_is_called_better():
    found = decide(b.LATENCY, explored()[1:], BASE)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "baseline could not be measured" in found.reason


def test_nothing_measured_is_no_decision():
    assert decide(b.LATENCY, [b.failed(0, BASE)], BASE) is None


def limited(limit):
    return Workload(
        apiVersion="autotuner/v1",
        kind="Workload",
        metadata=Metadata(name="chat"),
        objective="output_tok_s",
        cells=b.LATENCY.cells,
        slos=(Slo(metric="user_tok_s", limit=limit),),
    )


def test_a_configuration_that_breaks_a_limit_cannot_win():
    assert best_measured(limited(50.0), explored()).config == FAST
    assert best_measured(limited(139.0), explored()).config == FAST
    assert best_measured(limited(200.0), explored()) is None


def test_the_predicted_configuration_is_a_finalist_only_when_it_came_close_when_measured():
    close, far = b.config(spec="dflash", block=7, window="none"), b.config(spec="dflash", block=15, window="none")
    trials = [*explored(), b.measured(3, close, (138.0, 1.0, 1.0), Phase.PREDICTED), b.measured(4, far, (90.0, 1.0, 1.0), Phase.PREDICTED)]
    assert finalists(b.LATENCY, trials) == (FAST, close)
    assert finalists(b.LATENCY, [*trials[:3], trials[4]]) == (FAST,)


def surface(block):
    """An optimum at block 8, as on a real host."""
    return 100.0 - (block - 8) ** 2


def many(blocks):
    return [
        b.measured(number, b.config(spec="dflash", block=block, window="none"), (surface(block), 10.0, 100.0))
        for number, block in enumerate(blocks)
    ]


def test_the_regression_finds_the_region_of_the_optimum_and_never_proposes_what_was_launched():
    trials = many((4, 6, 7, 10, 12, 14, 16))
    candidates = [b.config(spec="dflash", block=block, window="none") for block in range(4, 17)]
    guess, model = best_predicted(b.LATENCY, trials, candidates)
    assert guess.config["block"] in (5, 8, 9)
    assert guess.config not in {trial.config for trial in trials}
    assert model.configurations == 7


def test_cross_validated_error_is_of_configurations_that_were_left_out():
    model = Surrogate(many((4, 6, 7, 8, 10, 12, 14, 16)), "user_tok_s")
    assert 0 < model.cross_validated_error_percent() < 40


def test_too_few_configurations_have_no_regression():
    assert best_predicted(b.LATENCY, many((4, 8)), [b.config()]) == (None, None)
    with pytest.raises(ValueError, match="2 configurations"):
        Surrogate(many((4, 8)), "user_tok_s")


def test_what_failed_to_start_lowers_the_chance_of_its_like():
    trials = [
        *many((4, 5, 6, 7)),
        *[b.failed(20 + n, b.config(spec="dflash", block=block, window="none")) for n, block in enumerate((12, 13, 14))],
    ]
    low, high = (b.config(spec="dflash", block=block, window="none") for block in (8, 15))
    good, bad = starts_probability(trials, [low, high])
    assert good > bad
    assert starts_probability(many((4, 5)), [high]) == [1.0]


def test_what_no_unit_file_can_hold_costs_the_unit_and_not_the_recommendation():
    host = b.host(engine=EngineInstall(name="sglang", cwd="/srv/../opt"))
    document = recommend(b.LATENCY, case(confirmed(4), host=host))
    assert document.spec.argv
    assert document.spec.unit == ""
    (doubt,) = [check for check in document.checks if check.name == "unit"]
    assert "'/srv/../opt' is not a plain absolute path" in doubt.detail


def test_a_recommendation_carries_spec_evidence_alternatives_and_validity():
    document = recommend(b.LATENCY, case(confirmed(4)))
    assert document.spec.parameters == dict(FAST)
    assert "--enable-metrics" not in document.spec.argv
    assert "ExecStart=python3" in document.spec.unit
    objective = document.evidence.objective
    assert objective.change_percent == pytest.approx(40, abs=2)
    assert objective.ci95_percent[0] < 40 < objective.ci95_percent[1]
    assert objective.repeats == 4
    assert document.evidence.provenance.trials_infeasible == 1
    assert document.validity.contexts == (60, 2000)
    assert [item.trial for item in document.alternatives] == [0]
    assert document.alternatives[0].why_not.endswith("worse when confirmed as well")


def test_the_same_study_writes_the_same_bytes():
    assert dump(recommend(b.LATENCY, case(confirmed(4)))) == dump(recommend(b.LATENCY, case(confirmed(4))))


def test_nothing_unmeasured_is_recommended():
    assert recommend(b.LATENCY, case([b.failed(0, BASE)])) is None


def test_no_significant_change_recommends_what_runs():
    document = recommend(b.THROUGHPUT, case(confirmed(4)))
    assert document.spec.parameters == dict(BASE)
    assert document.evidence.objective.change_percent == 0


def test_simulated_is_said_in_the_evidence_and_in_the_checks():
    document = recommend(b.LATENCY, case(confirmed(4), simulated=True))
    assert document.evidence.simulated
    assert "simulated" in {check.name for check in document.checks}


def checks(config, launches, **changes):
    values = {
        "verdict": Verdict.IMPROVED,
        "space": b.space(),
        "facts": {"drafter_block": 8},
        "simulated": False,
        "surrogate_error_percent": 5.0,
    }
    return {check.name: check.detail for check in check_recommendation(config, launches, **{**values, **changes})}


def test_a_prediction_in_the_evidence_has_not_seen_what_it_predicts():
    trials = [
        *confirmed(4),
        *[b.measured(40 + n, b.config(spec="dflash", block=block, window="none"), (90.0, 1.0, 1.0)) for n, block in enumerate((4, 5, 12))],
    ]
    document = recommend(b.LATENCY, case(trials))
    assert document.evidence.surrogate.predicted < 130  # seen, it would be 140


def test_an_alternative_carries_its_confirmed_value():
    document = recommend(b.LATENCY, case([b.measured(0, BASE, (50.0, 100.0, 1000.0), Phase.BASELINE), *confirmed(4)[1:]]))
    (other,) = document.alternatives
    assert other.measured == pytest.approx(100, rel=0.01)


def test_what_keeps_no_limit_has_a_reason_with_what_came_nearest():
    reason = why_nothing(limited(200.0), explored())
    assert reason == "no measured configuration keeps its limits; nearest is trial 1 with user_tok_s 140.0 tok/s (limit 200.0 tok/s)"
    assert why_nothing(b.LATENCY, [b.failed(0, BASE)]) == "nothing could be measured"


def test_a_limit_that_was_not_measured_is_a_doubt():
    assert "ttft_p95_ms" in checks(b.config(), [], unmeasured_slos=("ttft_p95_ms",))["slo_not_measured"]


def test_doubts_are_named():
    launches = [b.measured(0, OTHER, (1.0, 2.0, 3.0))]
    found = checks(OTHER, launches, surrogate_error_percent=60.0)
    assert {"quality", "too_few_repeats", "trained_depth", "surrogate"} <= set(found)
    assert "block 12 is beyond the 8" in found["trained_depth"]


def test_a_value_at_the_end_of_its_range_is_a_doubt():
    assert (
        "block=16 is the highest value searched"
        in checks(b.config(spec="dflash", block=16, window="none", mem_fraction=0.4), [])["best_at_bound"]
    )
    assert "best_at_bound" not in checks(b.config(spec="dflash", block=9, window="none", mem_fraction=0.4), [])
