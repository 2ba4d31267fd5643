"""Commands that stay wait at the start for a store that cannot be reached, with a line and a limit."""

from __future__ import annotations

import asyncio

import click
import pytest

from asterism.cli import cli_context
from asterism.cli.fleet.device_commands import join, monitor
from asterism.cli.fleet.serve_commands import serve
from asterism.fleet.fleet import Fleet
from asterism.store.memory import MemoryStore
from asterism.store.store_errors import StoreMissing, StoreUnavailable

REFUSED = "postgresql://db cannot be reached: connection refused"


def away(monkeypatch: pytest.MonkeyPatch, seconds: float, error: Exception | None = None) -> None:
    """The store cannot be opened for so many seconds."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds

    async def opened(url: str | None = None, *, by: str = "", create: bool = True) -> Fleet:
        if loop.time() < until:
            raise error or StoreUnavailable(REFUSED)
        return Fleet(MemoryStore())

    monkeypatch.setattr(Fleet, "open", opened)


async def use(wait: float) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with await cli_context._reached_fleet("postgresql://db", True, wait):
        return loop.time() - began


@pytest.mark.virtual_time
async def test_a_store_that_comes_in_time_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    away(monkeypatch, 20.0)
    assert 20.0 <= await use(60.0) <= 21.0
    assert capsys.readouterr().err.split("\n") == [
        f"The store cannot be reached; trying again for 1 min 00 s: {REFUSED}",
        "The store can be reached again.",
        "",
    ]


@pytest.mark.parametrize("wait", [0.0, 60.0])
@pytest.mark.virtual_time
async def test_the_wait_has_a_limit(monkeypatch: pytest.MonkeyPatch, wait: float) -> None:
    away(monkeypatch, 100.0)
    began = asyncio.get_running_loop().time()
    with pytest.raises(StoreUnavailable):
        await use(wait)
    assert asyncio.get_running_loop().time() - began == pytest.approx(wait)


@pytest.mark.virtual_time
async def test_a_store_that_is_there_costs_no_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    away(monkeypatch, 0.0)
    assert await use(60.0) == 0.0
    assert capsys.readouterr().err == ""


@pytest.mark.virtual_time
async def test_an_error_that_no_time_mends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    away(monkeypatch, 100.0, StoreMissing("the driver is not installed"))
    with pytest.raises(StoreMissing):
        await use(60.0)


@pytest.mark.parametrize("command", [serve, join, monitor], ids=["serve", "device join", "monitor"])
def test_the_commands_that_stay_have_the_option(command: click.Command) -> None:
    [option] = [parameter for parameter in command.params if parameter.name == "store_wait"]
    assert option.default == "60s"
