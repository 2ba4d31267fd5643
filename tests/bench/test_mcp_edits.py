"""The benchmark of edits through MCP: that every way works, and what its page says."""

from __future__ import annotations

import asyncio

import pytest

from asterism.core.record import replace
from bench import mcp_edits
from bench.mcp_edits import Rate, Sizes

SMALL = Sizes(seconds=0.0, rounds=1)
"""One edit of each caller."""


@pytest.mark.long
async def test_every_way_applies_its_edits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_edits, "CALLERS", (1, 2))
    for way in (mcp_edits._library, mcp_edits._http_api, mcp_edits._mcp_http):
        found = await way(SMALL)
        assert [one.callers for one in found] == [1, 2]
        assert all(one.per_second > 0 for one in found)


async def test_edits_that_are_not_in_the_plan_or_of_a_plan_at_rest_give_no_figure() -> None:
    async with mcp_edits._served() as (fleet, _):
        before = await mcp_edits.read_plan(fleet, "bench")
        mcp_edits.check_edits(before, before, 0)
        with pytest.raises(AssertionError, match="1 edits, and 0 new versions"):
            mcp_edits.check_edits(before, before, 1)
        with pytest.raises(AssertionError, match="no process runs the plan"):
            mcp_edits.check_edits(before, replace(before, owner=None), 0)
        with pytest.raises(AssertionError, match="did not run all the time"):
            mcp_edits.check_edits(replace(before, owner=None), before, 0)


@pytest.mark.long
def test_so_does_a_process_over_stdio() -> None:
    assert len(asyncio.run(mcp_edits._mcp_stdio(SMALL))) == 3


def test_the_page_compares_with_the_library_and_the_http_api() -> None:
    found = [Rate("library", 2, 400.0), Rate("HTTP API", 2, 250.0), Rate("MCP, stdio", 2, 200.0)]
    text = mcp_edits.page(found)
    assert "| library | 2 | 400 | 5.0 ms | 100% | 160% |" in text
    assert "| MCP, stdio | 2 | 200 | 10.0 ms | 50% | 80% |" in text
