"""The nearest thing that would have been right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near(word: object, options: Iterable[object]) -> str | None:
    """The option that ``word`` most likely stands for."""
    known = {str(option).lower(): str(option) for option in options}
    text = str(word).lower()
    if text in known:
        return known[text]
    matches = difflib.get_close_matches(text, known, n=1, cutoff=0.6)
    return known[matches[0]] if matches else None


def near_miss(word: object, options: Iterable[object]) -> str | None:
    """``did you mean 'x'?``, or nothing where no option is near."""
    match = near(word, options)
    return f"did you mean '{match}'?" if match is not None and match != word else None


def did_you_mean(word: object, options: Iterable[object], *, otherwise: str = "known are") -> str:
    """``did you mean 'x'?``, or the list of what is known."""
    listed = [str(option) for option in options]
    return near_miss(word, listed) or f"{otherwise}: {', '.join(listed)}"
