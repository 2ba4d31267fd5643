"""The benchmarks of the server: that they run, and that they count what they say."""

from __future__ import annotations

import re

import pytest

from bench import http_api

TINY = http_api.Sizes(tasks=20, clients=3, edits=4, at_once=2, minutes=4)


@pytest.mark.long
def test_no_client_of_a_stream_misses_an_event() -> None:
    text = http_api.streams(TINY)
    assert "| missing (bar: 0) | 0: met |" in text
    assert "| sent twice (bar: 0) | 0: met |" in text


@pytest.mark.long
def test_edits_and_memory_are_measured() -> None:
    assert len(re.findall(r"^\| the API", http_api.edits_per_second(TINY), re.MULTILINE)) == 3
    assert "| 4 minutes |" in http_api.memory(TINY)


def test_a_follower_reads_the_ids_of_a_stream() -> None:
    follower = http_api.Follower("http://127.0.0.1:1", "token", "plan", "1")
    follower._data += b"retry: 1000\n\nid: 1.0\nevent: task\ndata: {}\n\n: alive\n\nid: 2.0\nevent: task\ndata: {}\n\n"
    assert follower.ids == ["1.0", "2.0"]
    assert follower.has("2.0")
