"""The benchmarks of series: every register has one winner and loses nobody, or there is no figure; the page says what
was found."""

from __future__ import annotations

import pytest

from bench import __main__ as command
from bench.series import calls, contending, page
from tests.series.series_processes import Ended

SHORT = ("SQLite",)


@pytest.mark.parametrize(
    "name", [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in contending.PLACES]
)
def test_every_register_is_measured(name: str) -> None:
    memory, found = contending.measure(contenders=3, alone=2, names=[name])
    assert (memory.name, found.name) == ("memory", name)
    for one in (memory, found):
        assert one.contenders == 3
        assert one.tries >= 3
        assert one.alone > 0
        assert one.last > 0
        assert one.told == 0


def test_without_one_winner_there_is_no_figure() -> None:
    right = [Ended(75, "", "", 1.0), Ended(0, "", "", 1.0), Ended(75, "", "", 1.0)]
    assert contending.check_answers(right, give_up=False) == 3
    for code in (0, 76, 1):
        with pytest.raises(AssertionError, match="not one winner"):
            contending.check_answers([*right[:2], Ended(code, "", "", 1.0)], give_up=False)
    assert contending.check_answers([*right[:2], Ended(76, "", "", 1.0)], give_up=True) == 2
    with pytest.raises(AssertionError, match="not one winner"):
        contending.check_answers(right[:1], give_up=True)


async def test_claims_that_the_register_does_not_have_give_no_figure() -> None:
    register = contending.StoreRegister(contending.MemoryStore())
    with pytest.raises(AssertionError, match="the register has no series"):
        await contending.check_register(register, 1)
    await contending.claim(register, contending.NAME, contending.Claim(1))
    await contending.check_register(register, 1)
    with pytest.raises(AssertionError, match=r"2 claims, and the register has \[1\]"):
        await contending.check_register(register, 2)


def test_the_page_says_what_was_found() -> None:
    found = [
        contending.Measured("memory", 5000.0, 100, 0.5, 500, 3, 0.4),
        contending.Measured("git, `file://`", 9.0, 100, 95.0, 700, 80, 20.0),
    ]
    text = page.claims(found)
    assert "| git, `file://` | 9.0/s | 95.00 s | 1.1/s | 7.0 |" in text
    assert "| git, `file://` | 20 | 80 | 20.00 s |" in text
    assert "| 100 on `file://` within 90 s | 95.00 s | **missed** |" in text


@pytest.mark.long
def test_what_a_sync_asks_is_counted_and_said() -> None:
    found = {one.kind: one for one in calls.measure()}
    idle = found["nothing has changed"]
    assert (idle.cached_requests, idle.cached_counted) == (2, 0)
    assert all(one.counted <= one.requests for one in found.values())
    text = page.requests(list(found.values()))
    assert f"| nothing has changed | {idle.requests} | {idle.counted} | 2 | 0 |" in text
    assert "| a merge, the next is promoted and assigned |" in text


def test_the_page_is_one_of_those_that_can_be_written() -> None:
    assert command.PAGES["series"][2] == "benchmarks-series.md"
