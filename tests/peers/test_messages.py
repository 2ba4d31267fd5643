"""The encoding of messages: each line is parsed strictly, and an invalid one costs one record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.base.strict_json import NotStrictJson, parse_strict
from asterism.core.run import transitions
from asterism.peers.messages import (
    UnreadableLine,
    decode_message,
    encode_message,
    encode_record,
)
from asterism.store.row_codec import COLUMNS
from tests.peers.exchange_fixtures import FLOW, Direct, Side, two

BAD = {
    "NaN": b"NaN",
    "Infinity": b"-Infinity",
    "a float beyond all": b"1e999",
    "a huge int": b"9" * 5000,
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "quite deep": b"[" * 300 + b"]" * 300,
    "twice": b'{"a": 1, "a": 2}',
    "a lone surrogate": b'"\\ud800"',
    "no UTF-8": b'"\xff"',
    "no JSON": b"{",
}

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["a", "b"]), VALUES), st.lists(VALUES), st.lists(VALUES) | st.none())
def test_a_message_round_trips(header: dict[str, Any], records: list[Any], devices: list[Any] | None) -> None:
    message = {**header, "records": records, "devices": devices}
    assert decode_message(encode_message(message)) == message


@given(st.binary())
def test_no_bytes_crash_the_decoder(data: bytes) -> None:
    try:
        message = decode_message(data)
    except NotStrictJson:
        return
    assert all(isinstance(record, UnreadableLine) for record in message.get("records", []))


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_an_invalid_line_costs_one_record(bad: bytes) -> None:
    lines = [b'{"records": [], "n": 1}', b'{"record": 1}', b'{"record": ' + bad + b"}", b'{"record": 3}']
    message = decode_message(b"\n".join(lines))
    first, unreadable, last = message["records"]
    assert (first, last, message["n"]) == (1, 3, 1)
    assert isinstance(unreadable, UnreadableLine)
    with pytest.raises(NotStrictJson):
        parse_strict(bad)


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"NaN", b'{"records": [1]}', b'{"devices": null}\n{"device": 1}', b'{"a": ' + BAD["deep"] + b"}"],
)
def test_an_invalid_message_is_refused(data: bytes) -> None:
    with pytest.raises(NotStrictJson):
        decode_message(data)


class Tampered(Direct):
    """A transport that changes the bytes of messages."""

    def __init__(self, here: Side, there: Side, there_says: bytes, here_says: bytes) -> None:
        super().__init__(here, there)
        self._tampered = there_says, here_says
        self._here, self._there = here, there

    async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        theirs, ours = self._tampered
        sent = encode_message(message).replace(b'{"record":', ours + b'\n{"record":', 1)
        answer = await self._there.exchange.answer(self._here.name, decode_message(sent))
        return decode_message(encode_message(answer).replace(b'{"record":', theirs + b'\n{"record":', 1))


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
async def test_a_sync_continues_after_an_invalid_line(bad: bytes) -> None:
    laptop, kitchen = await two()
    ours, theirs = [await laptop.create() for _ in range(2)], [await kitchen.create() for _ in range(2)]
    line = b'{"record":' + bad + b"}"
    result = await laptop.exchange.sync("kitchen", Tampered(laptop, kitchen, line, line))
    assert all([await kitchen.store.run(run.id) for run in ours])
    assert all([await laptop.store.run(run.id) for run in theirs])
    assert result.refused >= 1
    assert any("not a valid JSON line" in reason for reason in result.refused_there)


@pytest.mark.parametrize("bad", [value for name, value in BAD.items() if name != "no UTF-8"])
async def test_an_invalid_column_costs_one_record(bad: bytes) -> None:
    """The input and the state of a run are JSON inside JSON."""
    laptop, kitchen = await two()
    await kitchen.create()
    await laptop.sync_with(kitchen)
    good = transitions.create("good", FLOW, {}, by="ann", now=5.0)
    forged = encode_record(7, "x", transitions.create("forged", FLOW, {}, by="ann", now=5.0))
    forged["run"][COLUMNS.index("input")] = json.dumps({"text": "HERE"}).replace('"HERE"', bad.decode())
    feed = feed_message(await kitchen.id(), [forged, encode_record(8, "x", good)])
    answer = await laptop.exchange.answer("kitchen", decode_message(encode_message(feed)))
    assert answer["refused"] == 1
    assert await laptop.store.run("good") is not None
    assert await laptop.store.run("forged") is None


def feed_message(store: str, records: list[Any]) -> dict[str, Any]:
    return {
        "protocol": 2, "store": store, "clock": 1_000_100.0, "feed": "another", "cursor": None, "after": 0, "upto": 8,
        "more": False, "newest": 8, "records": records, "devices": None, "wants": {},
        "lacks": [],
    }  # fmt: skip


async def test_a_record_with_an_invalid_number_costs_one_record() -> None:
    laptop, kitchen = await two()
    await laptop.sync_with(kitchen)
    good = transitions.create("good", FLOW, {}, by="ann", now=5.0)
    for bad in (
        {},
        5,
        {"number": -1},
        {"number": 1, "by": 7},
        {"number": 1, "by": "x"},
        {**encode_record(1, "x", good), "by": ""},
    ):
        message = feed_message(await kitchen.id(), [bad, encode_record(8, "x", good)])
        answer = await laptop.exchange.answer("kitchen", message)
        assert answer["refused"] == 1
    assert await laptop.store.run("good") is not None
