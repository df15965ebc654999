"""The load generator beside its peers, against one mock server, in eight figures.

``python -m benchmarks.loadgen`` runs everything and prints what each client gets wrong and what it costs; ``--quick`` does so with less.
Peers are installed into ``build/loadgen``, each in an environment of its own; one that cannot be had is named with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.loadgen.clients import OURS, Client, contenders
from benchmarks.loadgen.figures import FIGURES, QUICK, Bench, Figure, Sizes
from benchmarks.loadgen.handle import ROOT
from benchmarks.loadgen.venvs import NotInstallable

RESULTS = ROOT / "build" / "loadgen" / "results.json"


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def _text(value: float | str | None) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"


def render(figure: Figure) -> str:
    """A figure as a table in Markdown."""
    verdict = {True: "passed", False: "NOT passed", None: "not judged"}[figure.passed]
    unit = f", {figure.unit}" if figure.unit else ""
    lines = [f"### {figure.number}. {figure.title}{unit}", f"Bar: {figure.bar}. {verdict}.", ""]
    keys = list(dict.fromkeys(key for values in figure.values.values() for key in values))
    ratio = keys[-1 if len(keys) == 1 else min(1, len(keys) - 1)] if figure.number in (1, 2, 3, 4, 5) and keys else None
    ratios = figure.ratios(ratio) if ratio else {}
    header = ["client", *keys, *(["times ours"] if ratios else [])]
    lines += ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for name, values in figure.values.items():
        row = [name, *(_text(values.get(key)) for key in keys)]
        if ratios:
            row.append(_text(ratios.get(name)))
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join([*lines, *(["", figure.note] if figure.note else [])]) + "\n"


def _ready(clients: Sequence[Client]) -> tuple[list[Client], dict[str, str]]:
    """Those that could be prepared, and what there is to say about each: its version, or why it is missing."""
    ready, said = [], {}
    for client in clients:
        try:
            said[client.name] = client.prepare()
            ready.append(client)
        except NotInstallable as error:
            said[client.name] = f"not here: {error}"
    return ready, said


def _numbers(text: str) -> list[int]:
    numbers = [int(part) for part in text.split(",")]
    if not set(numbers) <= set(FIGURES):
        raise argparse.ArgumentTypeError(f"figures are {', '.join(map(str, FIGURES))}")
    return numbers


def main() -> int:
    """Run what was asked for. 1 when the product misses a bar."""
    names = [client.name for client in contenders()]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller sizes: minutes instead of an hour, for trying it out")
    parser.add_argument("--figures", type=_numbers, default=list(FIGURES), metavar="N,N", help="only these of the eight")
    parser.add_argument("--clients", default=",".join(names), metavar="NAME,NAME", help=f"only these of {', '.join(names)}")
    parser.add_argument("--streams", type=int, help="streams under load, up to 1024 (256)")
    parser.add_argument("--out", type=Path, default=RESULTS, help=f"where the JSON goes ({RESULTS.relative_to(ROOT)})")
    given = parser.parse_args()
    wanted = {OURS, *given.clients.split(",")}
    if unknown := wanted - set(names):
        parser.error(f"no client named {', '.join(sorted(unknown))}")
    sizes = QUICK if given.quick else Sizes()
    if given.streams:
        sizes = Sizes(**{**asdict(sizes), "streams": given.streams})
    clients, versions = _ready([client for client in contenders() if client.name in wanted])
    machine = {"cpus": os.cpu_count(), "load_before": os.getloadavg(), "kernel": platform.release(), "python": platform.python_version()}
    print("".join(f"{name}: {version}\n" for name, version in versions.items()))
    bench, figures = Bench(clients, sizes, _say), []
    for number in given.figures:
        figures.append(FIGURES[number](bench))
        print(render(figures[-1]), flush=True)
    machine["load_after"] = os.getloadavg()
    print(f"machine: {machine['cpus']} CPUs, load {machine['load_before'][0]:.2f} before and {machine['load_after'][0]:.2f} after")  # type: ignore[index]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    told = {
        "at": time.time(),
        "machine": machine,
        "versions": versions,
        "sizes": asdict(sizes),
        "figures": [asdict(figure) for figure in figures],
    }
    given.out.write_text(json.dumps(told, indent=1) + "\n")
    return 0 if all(figure.passed is not False for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
