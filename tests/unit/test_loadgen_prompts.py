from __future__ import annotations

import re
from importlib.resources import files

import pytest

from autotuner.errors import UsageError
from autotuner.loadgen import texts as texts_module
from autotuner.loadgen.prompts import Fit, PromptSource, key_of
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
    for texts in texts_module.texts().values():
        assert not set(texts.questions) & set(texts.holdout)
        assert len(texts.questions) >= 4
        assert len(texts.holdout) >= 2
    assert not set(texts_module.documents(holdout=True)) & set(texts_module.documents(holdout=False))
    search = PromptSource(ALL, 1)
    held = PromptSource(ALL, 1, holdout=True)
    seen = " ".join(search.prompt(60, index).text for index in range(70))
    for texts in texts_module.texts().values():
        assert all(question in seen for question in texts.questions)
        assert not any(question in seen for question in texts.holdout)
    assert not any(question in held.prompt(60, index).text for index in range(70) for question in texts_module.texts()["code"].questions)


def test_long_contexts_are_varied_text_before_the_question() -> None:
    source = PromptSource(("code", "prose"), 1, fit=Fit(overhead_tokens=20, filler_chars=4))
    text = source.prompt(30_000, 0).text
    assert len(text) == pytest.approx((30_000 - 20) * 4, rel=0.02)
    paragraphs = text.split("\n\n")
    assert len(set(paragraphs)) > 0.9 * len(paragraphs)
    assert any(question in paragraphs[-1] for question in texts_module.texts()["code"].questions)


@pytest.mark.parametrize("context", [60, 90, 130, 400, 2000])
@pytest.mark.parametrize("domain", ALL)
def test_the_length_follows_the_context(context: int, domain: Domain) -> None:
    fit = Fit(overhead_tokens=25, question_chars=((domain, 4.4),), filler_chars=3.6, library_chars=3.6)
    source = PromptSource((domain,), 1, fit=fit)
    lengths = []
    for index in range(15):
        filler, _, question = source.prompt(context, index).text[16:].rpartition("\n\n")
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


def test_pieces_that_were_counted_one_by_one_fill_a_context_to_the_token() -> None:
    asked = {text: 0 for found in texts_module.texts().values() for text in (*found.questions, *found.holdout, *found.wishes)}
    parts = [part.text for part in (*texts_module.documents(holdout=False), *texts_module.core(holdout=False))]

    # A tokenizer that characters do not foretell: longer words have fewer characters to a token.
    def count(text: str) -> int:
        return len(re.findall(r"\w{1,5}|\W", text))

    counts = {text: count(text) for text in (*asked, *parts)}
    fit = Fit(overhead_tokens=25, counted=tuple((key_of(text), tokens) for text, tokens in counts.items()))
    for domain in ALL:
        for context in (500, 2000):
            for index in range(10):
                _, *pieces = PromptSource((domain,), 1, fit=fit).prompt(context, index).text.split("\n\n")
                question = next(text for text in asked if pieces[-1].startswith(text))
                wishes = [text for text in asked if f" {text}" in pieces[-1].removeprefix(question)]
                known = sum(count(text) for text in (*pieces[:-1], question, *wishes))
                assert 25 + known == pytest.approx(context, abs=8)


def test_a_context_of_128k_tokens_does_not_repeat_itself() -> None:
    source = PromptSource(("prose", "code"), 1, fit=Fit(filler_chars=3.6, library_chars=3.3))
    assert source.longest_unrepeated > 131_072
    for index in range(2):
        pieces = source.prompt(131_072, index).text.split("\n\n")
        assert len(set(pieces)) == len(pieces)


def test_code_stands_before_questions_about_code_and_documents_before_others() -> None:
    library = {part.text for part in texts_module.library(holdout=False)}
    for domain, mostly in (("code", True), ("prose", False)):
        pieces = PromptSource((domain,), 1).prompt(8000, 0).text.split("\n\n")[1:-1]
        assert (sum(piece in library for piece in pieces) > len(pieces) / 2) is mostly


@pytest.mark.parametrize("text", ["a,b,c" * 40, "word " * 30, "x"])
def test_a_cut_text_has_about_the_length_that_was_asked(text: str) -> None:
    assert all(abs(len(texts_module.cut(text, chars)) - chars) <= texts_module.NEARBY for chars in range(1, len(text)))
