from __future__ import annotations

import re
from importlib.resources import files

import pytest

from autotuner.errors import UsageError
from autotuner.loadgen import prompts as module
from autotuner.loadgen.prompts import Fit, PromptSource
from autotuner.model.workload import Domain

ALL: tuple[Domain, ...] = ("code", "explanation", "arithmetic", "poem", "json", "prose", "rag")


def test_prompts_are_the_same_for_the_same_seed_and_differ_for_another() -> None:
    first = [PromptSource(ALL, 1).prompt(500, index) for index in range(30)]
    assert first == [PromptSource(ALL, 1).prompt(500, index) for index in range(30)]
    assert first != [PromptSource(ALL, 2).prompt(500, index) for index in range(30)]


def test_a_nonce_comes_first_and_is_unique() -> None:
    texts = [PromptSource(ALL, 1).prompt(context, index).text for context in (60, 1024) for index in range(200)]
    nonces = [text[:14] for text in texts[:200]]
    assert all(re.fullmatch(r"\[[0-9]{12}\]", nonce) for nonce in nonces)
    assert len(set(nonces)) == 200


def test_another_run_changes_the_nonce_and_nothing_else() -> None:
    one, other = (PromptSource(ALL, 1).prompt(700, 5, run=run).text for run in ("a", "b"))
    assert one[:14] != other[:14]
    assert one[14:] == other[14:]


def test_domains_take_turns() -> None:
    assert [PromptSource(ALL).prompt(60, index).domain for index in range(8)] == [*ALL, "code"]


def test_held_out_questions_and_texts_are_disjoint_from_those_of_the_search() -> None:
    for texts in module._texts().values():
        assert not set(texts.questions) & set(texts.holdout)
        assert len(texts.questions) >= 4
        assert len(texts.holdout) >= 2
    assert not set(module._paragraphs(holdout=True)) & set(module._paragraphs(holdout=False))
    search = PromptSource(ALL, 1)
    held = PromptSource(ALL, 1, holdout=True)
    seen = " ".join(search.prompt(60, index).text for index in range(70))
    for texts in module._texts().values():
        assert all(question in seen for question in texts.questions)
        assert not any(question in seen for question in texts.holdout)
    assert not any(question in held.prompt(60, index).text for index in range(70) for question in module._texts()["code"].questions)


def test_long_contexts_are_varied_text_before_the_question() -> None:
    source = PromptSource(("code", "prose"), 1, fit=Fit(overhead_tokens=20, filler_chars=4))
    text = source.prompt(30_000, 0).text
    assert len(text) == pytest.approx((30_000 - 20) * 4, rel=0.02)
    paragraphs = text.split("\n\n")
    assert len(set(paragraphs)) > 0.9 * len(paragraphs)
    assert any(question in paragraphs[-1] for question in module._texts()["code"].questions)


@pytest.mark.parametrize("context", [60, 90, 130, 400, 2000])
@pytest.mark.parametrize("domain", ALL)
def test_the_length_follows_the_context(context: int, domain: Domain) -> None:
    fit = Fit(overhead_tokens=25, question_chars=((domain, 4.4),), filler_chars=3.6)
    source = PromptSource((domain,), 1, fit=fit)
    lengths = []
    for index in range(15):
        filler, _, question = source.prompt(context, index).text[15:].rpartition("\n\n")
        lengths.append(25 + len(filler) / 3.6 + len(question) / 4.4)
    assert sorted(lengths)[7] == pytest.approx(context, rel=0.05)


def test_a_question_about_a_text_has_one_even_in_a_short_context() -> None:
    assert all("\n\n" in PromptSource(("rag",), 1).prompt(60, index).text for index in range(6))


def test_the_shipped_text_is_long_and_does_not_repeat() -> None:
    text = files("autotuner.loadgen").joinpath("data/corpus.txt").read_text(encoding="utf-8")
    paragraphs = text.strip().split("\n\n")
    assert len(text.encode()) > 60_000
    assert len(set(paragraphs)) == len(paragraphs)


def test_no_or_unknown_domains_are_refused() -> None:
    with pytest.raises(UsageError, match="prompt domains"):
        PromptSource(())
    with pytest.raises(UsageError, match="limericks"):
        PromptSource(("limericks",))  # type: ignore[arg-type]
