"""One right answer to each coding problem, written independently of the expected values."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter, OrderedDict, deque


def is_palindrome(text):
    letters = [letter.lower() for letter in text if letter.isalnum()]
    return letters == letters[::-1]


def fibonacci(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


def merge_sorted(left, right):
    return sorted(left + right)


def word_count(text):
    return dict(Counter(text.lower().split()))


def gcd(a, b):
    return math.gcd(a, b)


def reverse_words(sentence):
    return " ".join(reversed(sentence.split()))


def caesar(text, shift):
    def turned(letter):
        if not (letter.isascii() and letter.isalpha()):
            return letter
        base = ord("a") if letter.islower() else ord("A")
        return chr((ord(letter) - base + shift) % 26 + base)

    return "".join(turned(letter) for letter in text)


def run_length(text):
    parts = []
    for letter in text:
        if parts and parts[-1][0] == letter:
            parts[-1][1] += 1
        else:
            parts.append([letter, 1])
    return parts


def longest_unique(text):
    best, start, seen = 0, 0, {}
    for at, letter in enumerate(text):
        if seen.get(letter, -1) >= start:
            start = seen[letter] + 1
        seen[letter] = at
        best = max(best, at - start + 1)
    return best


def edit_distance(first, second):
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        last, row[0] = row[0], i
        for j, b in enumerate(second, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]


def primes_below(limit):
    return [n for n in range(2, limit) if all(n % d for d in range(2, math.isqrt(n) + 1))]


def to_base(number, base):
    digits = ""
    while number:
        number, digit = divmod(number, base)
        digits = "0123456789abcdef"[digit] + digits
    return digits or "0"


def roman(number):
    text = ""
    for value, sign in [
        (1000, "M"),
        (900, "CM"),
        (500, "D"),
        (400, "CD"),
        (100, "C"),
        (90, "XC"),
        (50, "L"),
        (40, "XL"),
        (10, "X"),
        (9, "IX"),
        (5, "V"),
        (4, "IV"),
        (1, "I"),
    ]:
        while number >= value:
            text, number = text + sign, number - value
    return text


def median(numbers):
    ordered, middle = sorted(numbers), len(numbers) // 2
    return float(ordered[middle]) if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def best_value(weights, values, capacity):
    best = [0] * (capacity + 1)
    for weight, value in zip(weights, values, strict=True):
        for room in range(capacity, weight - 1, -1):
            best[room] = max(best[room], best[room - weight] + value)
    return best[capacity]


def flatten(nested):
    flat = []
    for item in nested:
        flat.extend(flatten(item) if isinstance(item, list) else [item])
    return flat


def transpose(rows):
    return [list(column) for column in zip(*rows, strict=True)]


def merge_intervals(intervals):
    merged = []
    for low, high in sorted(intervals):
        if merged and low <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], high)
        else:
            merged.append([low, high])
    return merged


def lru(capacity, keys):
    held = OrderedDict()
    for key in keys:
        held.pop(key, None)
        held[key] = True
        if len(held) > capacity:
            held.popitem(last=False)
    return list(held)


def is_balanced(text):
    open_to = {")": "(", "]": "[", "}": "{"}
    waiting = []
    for sign in text:
        if sign in "([{":
            waiting.append(sign)
        elif sign in open_to and (not waiting or waiting.pop() != open_to[sign]):
            return False
    return not waiting


def parse_query(query):
    return dict(pair.split("=", 1) if "=" in pair else (pair, "") for pair in query.split("&") if pair)


def split_csv(line):
    fields, field, quoted, at = [], "", False, 0
    while at < len(line):
        sign = line[at]
        if quoted and sign == '"' and line[at + 1 : at + 2] == '"':
            field, at = field + '"', at + 1
        elif sign == '"':
            quoted = not quoted
        elif sign == "," and not quoted:
            fields, field = [*fields, field], ""
        else:
            field += sign
        at += 1
    return [*fields, field]


def evaluate(expression):
    tokens = deque(expression.replace("(", " ( ").replace(")", " ) ").replace("+", " + ").replace("-", " - ").replace("*", " * ").split())

    def total():
        value = product()
        while tokens and tokens[0] in "+-":
            value = value + product() if tokens.popleft() == "+" else value - product()
        return value

    def product():
        value = atom()
        while tokens and tokens[0] == "*":
            tokens.popleft()
            value *= atom()
        return value

    def atom():
        part = tokens.popleft()
        if part == "(":
            value = total()
            tokens.popleft()
            return value
        return int(part)

    return total()


def shortest_path(graph, start, goal):
    far, waiting = {start: 0}, deque([start])
    while waiting:
        node = waiting.popleft()
        for other in graph.get(node, []):
            if other not in far:
                far[other] = far[node] + 1
                waiting.append(other)
    return far.get(goal, -1)


def count_islands(grid):
    land = {(r, c) for r, row in enumerate(grid) for c, cell in enumerate(row) if cell == 1}
    islands = 0
    while land:
        islands += 1
        waiting = [land.pop()]
        while waiting:
            r, c = waiting.pop()
            for spot in ((r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)):
                if spot in land:
                    land.remove(spot)
                    waiting.append(spot)
    return islands


def has_cycle(graph):
    state = {}

    def visit(node):
        if state.get(node) == "open":
            return True
        if node in state:
            return False
        state[node] = "open"
        found = any(visit(other) for other in graph.get(node, []))
        state[node] = "done"
        return found

    return any(visit(node) for node in graph)


def is_leap_year(year):
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_between(first, second):
    return abs((dt.date.fromisoformat(second) - dt.date.fromisoformat(first)).days)


def add_minutes(clock, minutes):
    hours, past = map(int, clock.split(":"))
    now = (hours * 60 + past + minutes) % (24 * 60)
    return f"{now // 60:02d}:{now % 60:02d}"
