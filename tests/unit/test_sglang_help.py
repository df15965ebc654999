from __future__ import annotations

import argparse
import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner.engines.sglang import SglangEngine
from autotuner.engines.sglang.help import near_misses, parse_help

PAGES = Path(__file__).parents[1] / "data" / "help"
VERSIONS = ("0.5.12", "0.5.15", "0.5.17", "0.5.20", "0.5.23")


def page(version: str) -> str:
    return gzip.decompress((PAGES / f"sglang-{version}.txt.gz").read_bytes()).decode()


@pytest.mark.parametrize("version", VERSIONS)
def test_every_page_gives_names_aliases_and_choices(version: str) -> None:
    flags = parse_help(page(version))
    assert len(flags) > 400
    assert {"--model-path", "--model", "--tp-size", "--tensor-parallel-size", "--ep", "--mem-fraction-static"} <= flags.keys()
    assert set(SglangEngine.measuring_flags) <= flags.keys()
    assert "fp8_e4m3" in flags["--kv-cache-dtype"]
    assert {"triton", "flashinfer", "fa3"} <= set(flags["--attention-backend"])
    assert flags["--log-requests-level"] == ("0", "1", "2", "3")
    assert flags["--tp-size"] == ()
    assert all(" " not in flag and "," not in flag for flag in flags)


def test_builds_differ_as_they_did() -> None:
    old, new = parse_help(page("0.5.12")), parse_help(page("0.5.23"))
    assert "--cuda-graph-max-bs" in old
    assert "--cuda-graph-max-bs" not in new
    assert "--speculative-dflash-draft-window-size" in old
    assert "--speculative-dflash-draft-window-size" not in new
    assert "--attn-dp-size" in new
    assert "--attn-dp-size" not in old


def test_an_option_that_help_texts_mention_is_not_an_option() -> None:
    text = "usage: x [-h]\n\noptions:\n  -h, --help  show\n  --real R    see --other and\n              --third, which was removed\n"
    assert parse_help(text).keys() == {"-h", "--help", "--real"}


def test_aliases_of_python_313_stand_before_one_metavar() -> None:
    text = "usage: x [-h]\n\noptions:\n  --kv-dtype, --kv {auto,fp8}\n                        Type.\n"
    assert parse_help(text) == {"--kv-dtype": ("auto", "fp8"), "--kv": ("auto", "fp8")}


NAMES = st.lists(st.from_regex(r"[a-z]{2,9}(-[a-z]{2,9}){0,3}", fullmatch=True), min_size=1, max_size=12, unique=True)
CHOICES = st.one_of(st.none(), st.lists(st.from_regex(r"[a-z0-9_]{1,8}", fullmatch=True), min_size=1, max_size=4, unique=True))


@given(data=st.data(), width=st.integers(40, 200))
def test_what_argparse_prints_is_read_back(data: st.DataObject, width: int) -> None:
    names = [name for name in data.draw(NAMES) if name != "help"]
    parser = argparse.ArgumentParser(prog="serve", formatter_class=lambda prog: argparse.HelpFormatter(prog, width=width))
    expected: dict[str, tuple[str, ...]] = {"-h": (), "--help": ()}
    for name in names:
        choices = data.draw(CHOICES)
        nargs = data.draw(st.sampled_from([None, "+", "*"]))
        aliases = [f"--{name}", f"--{name}-alias"] if data.draw(st.booleans()) and f"{name}-alias" not in names else [f"--{name}"]
        if data.draw(st.booleans()):
            parser.add_argument(
                *aliases, choices=choices, nargs=nargs, help=data.draw(st.sampled_from(["Text.", "Text --not-me x.", None]))
            )
            expected |= dict.fromkeys(aliases, tuple(choices or ()))
        else:
            parser.add_argument(*aliases, action="store_true")
            expected |= dict.fromkeys(aliases, ())
    assert parse_help(parser.format_help()) == expected


def test_near_misses_know_renames_before_spelling() -> None:
    flags = parse_help(page("0.5.23"))
    assert (
        near_misses("--cuda-graph-max-bs", flags, {"--cuda-graph-max-bs": "--cuda-graph-max-bs-decode"})[0] == "--cuda-graph-max-bs-decode"
    )
    assert near_misses("--mem-fraction-statik", flags)[0] == "--mem-fraction-static"
    assert near_misses("--nothing-like-it-at-all", flags) == ()
    assert near_misses("--gone", flags, {"--gone": "--not-in-this-build"}) == ()
