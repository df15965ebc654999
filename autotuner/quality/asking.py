"""Asks a server questions at temperature 0, whole answers, some at once, while somebody is told that it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass

from autotuner.errors import TransportError
from autotuner.loadgen.control import ControlClient

_TICK_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back for one question."""

    text: str = ""
    finish_reason: str = ""
    error: str = ""
    """Why there is no answer; empty when there is one."""

    @property
    def truncated(self) -> bool:
        """Whether it was cut off at its longest."""
        return self.finish_reason == "length"

    def as_dict(self) -> dict[str, str]:
        """Its fields, as they are kept."""
        return asdict(self)


class Asker:
    """Asks one server. ``going_on`` is called at least every second while answers are awaited; what it raises ends the asking.

    ``failed`` is called when a question got no answer, and raises when that is because the server has died.
    """

    def __init__(
        self,
        control: ControlClient,
        *,
        model: str,
        chat_path: str,
        going_on: Callable[[], None],
        failed: Callable[[], None],
        limit_s: float,
    ) -> None:
        """``limit_s``: what is not answered so long after construction is left."""
        self._control = control
        self._model = model
        self._path = chat_path
        self.going_on = going_on
        self._failed = failed
        self._limit_s = limit_s
        self._until = time.monotonic() + limit_s

    def ask(self, questions: Sequence[str], *, tokens: int, at_once: int) -> list[Answer]:
        """The answers in the order of the questions, ``tokens`` at most each. A question without an answer says why."""
        with ThreadPoolExecutor(at_once, thread_name_prefix="quality") as pool:
            waiting = [pool.submit(self._one, question, tokens) for question in questions]
            try:
                self._wait(waiting)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            return [future.result() for future in waiting]

    def _wait(self, futures: Sequence[Future[Answer]]) -> None:
        left = set(futures)
        while left:
            self.going_on()
            done, left = wait(left, timeout=_TICK_S, return_when=FIRST_COMPLETED)
            if any(future.result().error for future in done):
                self._failed()

    def _one(self, question: str, tokens: int) -> Answer:
        if time.monotonic() >= self._until:
            return Answer(error=f"not asked: the questions before took longer than {self._limit_s:.0f} s")
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": tokens,
            "temperature": 0,
            "top_p": 1,
        }
        try:
            return _answer(self._control.post_json(self._path, body))
        except TransportError as error:
            return Answer(error=error.message[:300])


def _answer(reply: object) -> Answer:
    """The answer in a reply that any server may have written."""
    choices = reply.get("choices") if isinstance(reply, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        return Answer(error=f"no message in the answer: {str(reply)[:200]}")
    content = message.get("content")
    return Answer(text=content if isinstance(content, str) else "", finish_reason=str(choice.get("finish_reason") or ""))
