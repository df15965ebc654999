"""``answering.py FILE FLAG…``: the simulated server, whose whole answers are those of a model whose manner FILE names.

right        every problem solved, the same words every time
shaky        as right, but a few words further on it goes its own way in one answer of five, and one problem is lost
wrong        other words, and code that returns nothing
truncated    as right, but code is cut off at its longest
gibberish    one sign again and again
attacking    as right, but three problems are answered with attacks
planting     as right, but every piece of code leaves a file when it runs
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from autotuner.engines.simulated import __main__ as simulated
from autotuner.engines.simulated import completions, tokens
from autotuner.engines.simulated.wire import Answer

TREE = ast.parse(Path(__file__).with_name("solutions.py").read_text())
IMPORTS = "\n".join(ast.unparse(node) for node in TREE.body if isinstance(node, ast.Import | ast.ImportFrom))
SOLUTIONS = {node.name: ast.unparse(node) for node in TREE.body if isinstance(node, ast.FunctionDef)}
ATTACKS = {
    "gcd": "import os\n    print('PASS')\n    os._exit(0)",
    "fibonacci": "while True:\n        pass",
    "word_count": "import os\n    while True:\n        os.fork()",
}


def code(manner: str, name: str) -> tuple[str, str]:
    """The answer to a coding problem and why it ended."""
    body = SOLUTIONS[name]
    if manner == "wrong" or (manner == "shaky" and name == "roman"):
        body = f"def {name}(*given):\n    return None"
    if manner == "attacking" and name in ATTACKS:
        body = f"def {name}(*given):\n    {ATTACKS[name]}"
    if manner == "planting":
        body = f"open({sys.argv[1]!r} + '.planted', 'w').close()\n{body}"
    text = f"Certainly!\n```python\n{IMPORTS}\n\n{body}\n```\nThis solves it."
    return (text[: len(text) // 2], "length") if manner == "truncated" else (text, "stop")


def answer(manner: str, prompt: str) -> tuple[str, str]:
    """The text of an answer and why it ended."""
    if manner == "gibberish":
        return "!" * 120, "length"
    asked = re.search(r"Write a function `(\w+)\(", prompt)
    if asked:
        return code(manner, asked[1])
    if "capital of France" in prompt:
        return "Paris" if manner != "wrong" else "Madrid", "stop"
    words = [f"{word}{number}" for number in range(6) for word in re.findall(r"\w+", prompt)]
    if manner == "wrong":
        words.reverse()
    if manner == "shaky" and len(prompt) % 5 == 0:
        words = words[: len(words) // 2] + words[::-1]
    return " ".join(words), "length"


def whole(self: completions.Whole) -> Answer:
    """A whole answer in the manner that the file in the first argument names."""
    ask = self._ask
    text, why = answer(Path(sys.argv[1]).read_text(), ask.prompt)
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": why}
    return Answer.of({"model": ask.model, "choices": [choice], "usage": self._usage.at(ask.answer_tokens)})


if __name__ == "__main__":
    completions.Whole.answer = whole  # type: ignore[method-assign]
    tokens.answer_tokens = lambda *_, **__: 4  # how fast they come is not what this server is for
    sys.exit(simulated.main(sys.argv[2:]))
