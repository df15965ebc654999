from __future__ import annotations

import pytest

from autotuner.model.quality import QualityPart, QualityReport
from autotuner.quality.asking import Answer
from autotuner.quality.comparing import LEAST_LOST, agreement, broken, judge_canary, judge_coding, judge_greedy, words
from autotuner.quality.problems import equal, questions

TEXT = "The sky is blue because air scatters short waves of light far more than long ones."


def answers(*texts: str) -> list[Answer]:
    return [Answer(text=text, finish_reason="stop") for text in texts]


def test_equal_answers_agree_wholly_and_others_as_far_as_they_go():
    half = " ".join(TEXT.split()[:8]) + " something else altogether, and then more."

    assert agreement(answers(TEXT), answers(TEXT)) == 1
    assert 0.3 < agreement(answers(half), answers(TEXT)) < 0.6
    assert agreement(answers("Zebras!"), answers(TEXT)) == 0
    assert agreement(answers(TEXT, "Zebras!"), answers(TEXT, TEXT)) == 0.5


def test_an_answer_that_stops_early_does_not_agree_wholly():
    assert agreement(answers("The sky"), answers(TEXT)) == 2 / len(words(TEXT))


def test_questions_without_an_answer_do_not_count():
    missing = Answer(error="connection refused")

    assert agreement([missing, *answers(TEXT)], answers(TEXT, TEXT)) == 1
    assert agreement([missing], answers(TEXT)) is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (TEXT, None),
        ("4", None),
        ("", "empty"),
        ("!" * 200, "nothing but '!'"),
        ("the the " * 40, "nothing but 'the'"),
        ("\ufffd\ufffd\x00a", "no text"),
        ("Ho ho ho", None),
    ],
)
def test_what_is_no_language_is_seen(text, fault):
    assert broken(answers(text)[0]) == fault


def test_a_long_thought_without_text_yet_is_not_broken():
    assert broken(Answer(text="", finish_reason="length")) is None


def test_the_floor_comes_from_the_baseline_against_itself():
    first = answers(TEXT, TEXT)
    near = judge_greedy(answers(TEXT, "Zebras!"), first, 0.9)
    far = judge_greedy(answers("Zebras!", "Zebras!"), first, 0.9)

    assert (near.status, near.score, near.floor) == ("passed", 0.5, 0.45)
    assert (far.status, far.score, far.floor) == ("failed", 0.0, 0.45)
    assert "floor is 45%" in far.reason


def test_without_a_reference_nothing_is_judged_and_that_is_said():
    greedy, coding = judge_greedy(answers(TEXT), None, None), judge_coding({"gcd": "solved"}, [])

    assert greedy.status == coding.status == "not_checked"
    assert "no reference yet" in greedy.reason
    assert "no reference yet" in coding.reason


def test_a_baseline_that_does_not_agree_with_itself_judges_nobody():
    found = judge_greedy(answers("Zebras!"), answers(TEXT), 0.1)

    assert found.status == "not_checked"
    assert "agrees with itself on 10% only" in found.reason


def test_the_canary_counts_where_the_baseline_knew_it():
    right, wrong = answers("Paris.", "Berlin")

    assert judge_canary(right, "paris", [], None).status == "passed"
    assert judge_canary(wrong, "paris", [], right).status == "failed"
    assert judge_canary(wrong, "paris", [], wrong).status == "passed"
    assert judge_canary(wrong, "paris", [], None).status == "not_checked"
    assert judge_canary(Answer(text="Well, let", finish_reason="length"), "paris", [], right).status == "not_checked"


def test_gibberish_fails_even_without_a_reference():
    found = judge_canary(answers("!" * 99)[0], "paris", answers("!" * 300, "!" * 300, TEXT), None)

    assert found.status == "failed"
    assert found.reason.startswith("3 of 4 answers are no language")


SOLVED = {f"p{number}": "solved" for number in range(20)}


def lost(count: int, kind: str = "wrong") -> dict[str, str]:
    return {name: kind if number < count else "solved" for number, name in enumerate(SOLVED)}


def test_losing_more_problems_than_rounding_explains_fails():
    assert judge_coding(lost(LEAST_LOST), [SOLVED, SOLVED]).status == "passed"
    found = judge_coding(lost(LEAST_LOST + 1), [SOLVED, SOLVED])

    assert (found.status, found.score, found.floor) == ("failed", 0.85, 0.9)
    assert "p0, p1, p2" in found.reason


def test_a_baseline_that_wavers_itself_allows_more():
    wavering = lost(3)

    assert judge_coding(lost(9), [SOLVED, wavering]).status == "passed"  # 6 of the 17 that it solves both times, and 6 may be
    assert judge_coding(lost(10), [SOLVED, wavering]).status == "failed"


def test_truncated_answers_are_not_wrong_ones():
    cut = judge_coding(lost(10, "truncated"), [SOLVED, SOLVED])

    assert cut.status == "not_checked"
    assert cut.counts == {"truncated": 10, "solved": 10}
    assert cut.score == 1.0
    assert "10 truncated" in cut.reason


def test_a_model_that_solves_next_to_nothing_has_nothing_to_lose():
    found = judge_coding(lost(20), [lost(19), lost(19)])

    assert found.status == "passed"
    assert "the baseline solves 1" in found.reason


@pytest.mark.parametrize(("states", "status"), [("pp", "passed"), ("pn", "not_checked"), ("nf", "failed"), ("pf", "failed")])
def test_the_report_is_as_good_as_its_worst_part(states, status):
    names = {"p": "passed", "n": "not_checked", "f": "failed"}
    parts = tuple(QualityPart(name="greedy", status=names[state], reason=state) for state in states)  # type: ignore[arg-type]

    assert QualityReport.of(parts).status == status


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        (1, 1, True),
        (True, 1, False),
        (1, True, False),
        (1.0, 1, True),
        (0.1 + 0.2, 0.3, True),
        (float("nan"), 1.0, False),
        (10**400, 1.0, False),
        ("1", 1, False),
        (None, False, False),
        ({"list": [1, {"list": ["a"]}]}, [1, ["a"]], True),
        ({"list": [1]}, [1, 2], False),
        ([1], [1], False),
        ({"dict": [["a", 1]]}, {"a": 1}, True),
        ({"dict": [["a", 1], ["a", 1]]}, {"a": 1, "b": 1}, False),
        ({"dict": [[1, 1]]}, {"1": 1}, False),
        ({"dict": "ab"}, {"a": 1, "b": 2}, False),
        ({"other": "set"}, ["a"], False),
    ],
)
def test_values_are_compared_strictly(found, expected, same):
    assert equal(found, expected) is same


def test_there_are_problems_of_several_kinds_and_each_has_several_cases():
    problems = questions().problems
    names = {problem.name for problem in problems}

    assert {"is_palindrome", "fibonacci", "merge_sorted", "word_count", "gcd"} <= names
    assert len(names) == len(problems) >= 20
    assert {problem.kind for problem in problems} >= {"strings", "numbers", "data structures", "parsing", "graphs", "dates"}
    assert all(len(problem.cases) >= 4 and len({repr(case.value) for case in problem.cases}) >= 2 for problem in problems)
    assert all(problem.name in problem.ask for problem in problems)
