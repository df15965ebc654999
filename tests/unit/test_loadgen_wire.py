from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner.loadgen.answers import BodyReader, EventReader, ReadLog, WireError, read_answer, read_head

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n" % len(piece) + piece + b"\r\n" for piece in pieces) + b"0\r\n\r\n"


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    marks = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[low:high] for low, high in itertools.pairwise(marks)]


def logged(pieces: list[bytes], *, ended: bool = True) -> ReadLog:
    reads = [(number, piece) for number, piece in enumerate(pieces)]
    return ReadLog(sent_ns=0, reads=reads, end_ns=len(reads) if ended else None)


events_text = st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), min_size=1), min_size=1, max_size=8)


@given(events_text, st.lists(st.integers(0, 5000)), st.lists(st.integers(0, 5000)), st.sampled_from([b"\n", b"\r\n"]))
def test_events_are_the_same_however_chunks_and_reads_are_cut(
    texts: list[str], chunk_cuts: list[int], read_cuts: list[int], line_end: bytes
) -> None:
    stream = b"".join(b": beat" + line_end + b"data: " + text.encode() + line_end * 2 for text in texts)
    raw = HEAD + chunked(*(piece for piece in split(stream, chunk_cuts) if piece))
    answer = read_answer(logged(split(raw, read_cuts)))
    assert answer.complete
    assert [data.decode() for _, _, data in answer.events] == texts


text_of_a_field = st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), max_size=12)
odd_text = st.one_of(
    text_of_a_field, st.sampled_from(["\u2028", "\u2029\u0085", "data: x", ":", " leading", "\x00", "\x0b\x0c\x1c", "[DONE]"])
)
fields = st.one_of(
    st.tuples(st.just("data"), odd_text),
    st.tuples(st.sampled_from(["event", "id", "retry", "unknown", "da", "datas", ""]), odd_text),
)


@st.composite
def event_streams(draw: st.DrawFn) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Bytes of an event stream, and the events that are in it by the standard."""
    out, expected = [draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))], []
    for lines in draw(st.lists(st.lists(fields, max_size=5), max_size=6)):
        data, name = [], b""
        for key, value in lines:
            colon = draw(st.sampled_from([":", ": "]))
            out.append(f"{key}{colon}{value}".encode() + draw(st.sampled_from([b"\n", b"\r\n"])))
            # One space after the colon is no part of the value, wherever it came from.
            told = value.removeprefix(" ") if colon == ":" else value
            if key == "data":
                data.append(told.encode())
            elif key == "event":
                name = told.encode()
        out.append(draw(st.sampled_from([b"\n", b"\r\n"])))
        if data:
            expected.append((name, b"\n".join(data)))
    if draw(st.booleans()):
        out.append(b"data: an event that no empty line ends")
    return b"".join(out), expected


@given(event_streams(), st.lists(st.integers(0, 3000)), st.lists(st.integers(0, 3000)))
def test_any_split_of_the_same_bytes_yields_the_events_of_the_standard(
    stream: tuple[bytes, list[tuple[bytes, bytes]]], chunk_cuts: list[int], read_cuts: list[int]
) -> None:
    raw, expected = stream
    reader = EventReader()
    assert [event for piece in split(raw, read_cuts) for event in reader.feed(piece)] == expected
    answer = read_answer(logged(split(HEAD + chunked(*(piece for piece in split(raw, chunk_cuts) if piece)), read_cuts)))
    assert [(name, data) for _, name, data in answer.events] == expected
    byte_by_byte = EventReader()
    assert [event for byte in raw for event in byte_by_byte.feed(bytes([byte]))] == expected


@given(st.binary(max_size=400), st.lists(st.integers(0, 400)))
def test_no_bytes_break_the_readers_and_cuts_change_nothing(garbage: bytes, cuts: list[int]) -> None:
    whole, cut = EventReader(), EventReader()
    assert list(whole.feed(garbage)) == [event for piece in split(garbage, cuts) for event in cut.feed(piece)]
    for raw in (garbage, HEAD + garbage):
        try:
            at_once = read_answer(logged([raw]))
        except WireError:
            with pytest.raises(WireError):
                read_answer(logged(split(raw, cuts)))
        else:
            in_pieces = read_answer(logged(split(raw, cuts)))
            assert (in_pieces.body, in_pieces.complete) == (at_once.body, at_once.complete)


@given(events_text, st.lists(st.integers(0, 5000)), st.integers(0, 400))
def test_a_cut_stream_is_never_complete_and_gives_a_prefix(texts: list[str], read_cuts: list[int], lost: int) -> None:
    stream = b"".join(b"data: " + text.encode() + b"\n\n" for text in texts)
    raw = HEAD + chunked(stream)
    raw = raw[: max(len(HEAD), len(raw) - 1 - lost)]
    answer = read_answer(logged(split(raw, read_cuts)))
    assert not answer.complete
    found = [data.decode() for _, _, data in answer.events]
    assert found == texts[: len(found)]


def test_an_event_has_the_time_of_the_read_that_completes_it() -> None:
    raw = [HEAD, b"7\r\ndata: a\r\n", b"3\r\n\n\nd\r\n", b"8\r\nata: b\n\n\r\n0\r\n\r\n"]
    assert [(at, data) for at, _, data in read_answer(logged(raw)).events] == [(2, b"a"), (3, b"b")]


def test_only_line_feeds_end_lines() -> None:
    text = '{"a":"\u2028\u2029\u0085\x0b\x0c"}'.encode()
    assert list(EventReader().feed(b"data: " + text + b"\r\n\r\n")) == [(b"", text)]


def test_fields_comments_names_and_data_of_several_lines() -> None:
    text = b": hello\nid: 7\nevent: error\ndata:x\ndata: y\n\nretry: 5\n\n"
    assert list(EventReader().feed(text)) == [(b"error", b"x\ny")]


def test_a_byte_order_mark_stands_before_the_first_field_only() -> None:
    mark = b"\xef\xbb\xbf"
    assert list(EventReader().feed(mark + b"data: 1\n\n" + mark + b"data: 2\n\n")) == [(b"", b"1")]


def test_a_huge_event_in_many_pieces_costs_no_more_than_its_size() -> None:
    reader, found = EventReader(), []
    for piece in [b"data: ", *([b"x" * 4096] * 2000), b"\n\n"]:
        found.extend(reader.feed(piece))
    assert [len(data) for _, data in found] == [4096 * 2000]


def test_bodies_end_by_length_by_close_or_by_status() -> None:
    assert read_answer(logged([b"HTTP/1.1 500 Oops\r\ncontent-length: 3\r\n\r\nab", b"c"])).complete
    assert not read_answer(logged([b"HTTP/1.1 500 Oops\r\ncontent-length: 4\r\n\r\nabc"])).complete
    until_close = [b"HTTP/1.0 200 OK\r\n\r\ndata: 1\n\n"]
    assert read_answer(logged(until_close)).complete
    assert not read_answer(logged(until_close, ended=False)).complete
    assert read_answer(logged([b"HTTP/1.1 204 Nothing\r\n\r\n"])).complete


def test_chunk_extensions_and_trailers_are_skipped() -> None:
    reader = BodyReader()
    assert reader.feed(HEAD + b"3;name=1\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n") == b"abc"
    assert reader.complete


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 what\r\n\r\n",
        HEAD + b"zz\r\nabc",
        HEAD + b"2\r\nabcd\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20000,
    ],
)
def test_what_is_not_http_is_malformed(raw: bytes) -> None:
    with pytest.raises(WireError) as caught:
        BodyReader().feed(raw)
    assert caught.value.kind == "malformed"


def test_a_head_waits_for_its_end() -> None:
    assert read_head(b"HT") is None
    assert read_head(HEAD[:-1]) is None
    head = read_head(HEAD + b"rest")
    assert head is not None
    assert (head.status, head.size, head.chunked, head.length) == (200, len(HEAD), True, None)
