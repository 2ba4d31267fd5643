"""`asterism top`, driven with Textual's pilot: tabs, details, logs, the filter, and hostile text."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import OptionList, Static

from asterism.cli.top import ListingScreen, Subject, SystemThread, TextScreen, Top
from asterism.fleet.fleet import Fleet
from asterism.series.claims import Claim, claim
from asterism.series.store_register import StoreRegister
from asterism.store.protocol import Notice, PutLog, StoredChunk
from tests.cli.stored_plan_scenes import keeping
from tests.cli.system_scenes import SystemScene, system_scene
from tests.long_tests import rest_long
from tests.process_scenes import PATIENCE


@pytest.fixture(params=["sqlite", pytest.param("server", marks=pytest.mark.long)])
def scene(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SystemScene]:
    """A store, and a server of one."""
    with system_scene(request.param, tmp_path / "scene", "") as scene:
        monkeypatch.setenv("ASTERISM_TOKEN", scene.env["ASTERISM_TOKEN"])
        scene.ok("workflow", "add", "nap", "--argv", "sleep {seconds}")
        scene.ok("workflow", "add", "render", "--shell", "true", "--needs", "gpu")
        yield scene


@pytest.fixture
def with_plan(scene: SystemScene) -> SystemScene:
    return keeping(scene)


@asynccontextmanager
async def top(scene: SystemScene, tab: str = "plans", size: tuple[int, int] = (80, 24)) -> AsyncIterator[Pilot[None]]:
    with SystemThread(scene.address) as thread:
        async with Top(thread, tab).run_test(size=size) as pilot:
            yield pilot


async def until(pilot: Pilot[Any], condition: Callable[[], Any]) -> None:
    """Wait until the screen shows it."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await pilot.pause(0.05)


def rows(pilot: Pilot[Any]) -> list[str]:
    options = pilot.app.screen.query_one(OptionList)
    return [str(options.get_option_at_index(place).prompt) for place in range(options.option_count)]


def listing(pilot: Pilot[Any]) -> ListingScreen:
    screen = pilot.app.screen
    assert isinstance(screen, ListingScreen)
    return screen


def status(pilot: Pilot[Any]) -> str:
    return str(pilot.app.screen.query_one("#status", Static).content)


def drawn(pilot: Pilot[Any]) -> str:
    """The whole terminal as text."""
    height = pilot.app.size.height
    return "\n".join(strip.text for strip in pilot.app.screen._compositor.render_strips()[:height])


async def ask(scene: SystemScene, work: Callable[[Fleet], Awaitable[Any]]) -> Any:
    async with await Fleet.open(scene.url, by="ann") as fleet:
        return await work(fleet)


async def create(scene: SystemScene, workflow: str, label: str | None = None) -> str:
    async def make(fleet: Fleet) -> str:
        run_input = {"seconds": 1} if workflow == "nap" else {}
        return (await fleet.create(await fleet.workflows.latest(workflow), run_input, label=label)).id

    return str(await ask(scene, make))


# -- tabs --------------------------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_an_empty_store_says_what_to_type(scene: SystemScene) -> None:
    async with top(scene) as pilot:
        for key, words in {
            "1": "asterism run PLAN.YAML",
            "2": "asterism runs create",
            "3": "asterism device join",
            "4": "asterism series claim",
            "5": "There are no notices",
        }.items():
            await pilot.press(key)
            await until(pilot, lambda words=words: words in status(pilot))


@pytest.mark.parametrize("scene", rest_long(["sqlite", "server"], 1), indirect=True)
async def test_every_tab_lists_what_the_store_has(with_plan: SystemScene) -> None:
    scene = with_plan
    run = await create(scene, "nap", "a short nap")

    async def notify(fleet: Fleet) -> None:
        await claim(StoreRegister(fleet.store, owned=False), "RFC-093", Claim(12, by="ann"))
        await fleet.store.commit([Notice(fleet.store.clock(), "late", "a result came too late", run, "lab-1")])

    await ask(scene, notify)
    async with top(scene) as pilot:
        await until(pilot, lambda: any("nightly" in row and "0/2" in row for row in rows(pilot)))
        await pilot.press("2")
        await until(pilot, lambda: any("a short nap" in row and run[-8:] in row for row in rows(pilot)))
        await pilot.press("4")
        await until(pilot, lambda: any("RFC-093" in row and "#12" in row for row in rows(pilot)))
        await pilot.press("5")
        await until(pilot, lambda: any("a result came too late" in row for row in rows(pilot)))
        await pilot.press("enter")  # the run that the notice is about
        await until(pilot, lambda: "a short nap" in drawn(pilot))


@pytest.mark.long
@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
async def test_nothing_is_wider_than_the_terminal(scene: SystemScene, size: tuple[int, int]) -> None:
    await create(scene, "nap", "a label that is much longer than forty columns wide")
    async with top(scene, "runs", size) as pilot:
        await until(pilot, lambda: rows(pilot))
        assert all(len(line) <= size[0] for line in drawn(pilot).splitlines())
        assert ("a label that is much longer than forty columns wide" in drawn(pilot)) == (size[0] == 200)


@pytest.mark.long
async def test_a_new_run_appears_without_a_key(scene: SystemScene) -> None:
    async with top(scene, "runs") as pilot:
        await until(pilot, lambda: "There are no runs" in status(pilot))
        await create(scene, "render")
        await until(pilot, lambda: any("render" in row for row in rows(pilot)))


# -- details, why, logs ------------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_why_names_what_holds_a_run(scene: SystemScene) -> None:
    await create(scene, "render")
    async with top(scene, "runs") as pilot:
        await until(pilot, lambda: rows(pilot))
        await pilot.press("w")
        await until(pilot, lambda: "asterism device join NAME --can gpu" in " ".join(drawn(pilot).split()))
        await pilot.press("escape")
        assert isinstance(pilot.app.screen, ListingScreen)


@pytest.mark.parametrize("scene", rest_long(["sqlite", "server"], 1), indirect=True)
async def test_the_tasks_of_a_plan_and_what_holds_it(with_plan: SystemScene) -> None:
    async with top(with_plan) as pilot:
        await until(pilot, lambda: rows(pilot))
        await until(pilot, lambda: "q Quit" in drawn(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: "  ◌ test  waiting" in drawn(pilot) and "no process runs it" in drawn(pilot))
        assert isinstance(pilot.app.screen, TextScreen)
        await until(pilot, lambda: "Back" in drawn(pilot))
        await pilot.press("q", "w")
        await until(pilot, lambda: "nightly" in drawn(pilot) and "build" in drawn(pilot))
        await pilot.press("escape")
        assert listing(pilot).subject == Subject("plans", "nightly")
        await pilot.press("3")
        await until(pilot, lambda: "No device" in status(pilot) or "DEVICE" in drawn(pilot))
        assert "l Logs" not in drawn(pilot)
        await pilot.press("q")
    assert not pilot.app.is_running


@pytest.mark.long
async def test_a_log_grows_while_it_is_shown(scene: SystemScene) -> None:
    run = await create(scene, "render")

    def printed(number: int) -> Callable[[Fleet], Any]:
        async def write(fleet: Fleet) -> None:
            line = [[0.0, "stdout", f"line {number}"]]
            await fleet.store.commit([PutLog(run, 1, [StoredChunk(1, number, 1, line)])])

        return write

    await ask(scene, printed(1))
    async with top(scene, "runs") as pilot:
        await until(pilot, lambda: rows(pilot))
        await pilot.press("l")
        await until(pilot, lambda: isinstance(pilot.app.screen, TextScreen) and "line 1" in drawn(pilot))
        await ask(scene, printed(2))
        await until(pilot, lambda: "line 2" in drawn(pilot))
        assert drawn(pilot).count("line ") == 2, "each line once"


# -- the filter and the cursor -----------------------------------------------------------------------------------------


@pytest.mark.long
async def test_a_filter_shows_what_matches_and_escape_removes_it(scene: SystemScene) -> None:
    await create(scene, "render")
    await create(scene, "nap", "Video")
    async with top(scene, "runs") as pilot:
        await until(pilot, lambda: len(rows(pilot)) == 2)
        await pilot.press("slash", *"video", "enter")
        await until(pilot, lambda: len(rows(pilot)) == 1 and "Video" in rows(pilot)[0])
        assert "1 of 2 match the filter" in status(pilot)
        await pilot.press("escape")
        await until(pilot, lambda: len(rows(pilot)) == 2)
        await pilot.press("slash", *"CREATED render", "enter")
        await until(pilot, lambda: len(rows(pilot)) == 1 and "render" in rows(pilot)[0])


@pytest.mark.long
async def test_the_cursor_stays_on_its_row_when_rows_come_and_go(scene: SystemScene) -> None:
    first = await create(scene, "render")
    second = await create(scene, "render")
    async with top(scene, "runs") as pilot:
        await until(pilot, lambda: len(rows(pilot)) == 2)
        await pilot.press("down")
        await ask(scene, lambda fleet: fleet.cancel(first))  # it moves behind the runs that wait
        await until(pilot, lambda: second[-8:] in rows(pilot)[0])
        assert listing(pilot).subject == Subject("runs", second)


# -- safety ------------------------------------------------------------------------------------------------------------


async def test_text_from_outside_neither_acts_on_the_terminal_nor_is_markup(scene: SystemScene) -> None:
    hostile = "[red]x[/] \x1b]0;title\x07 \u202e end"
    run = await create(scene, "render", "[red]x[/] a")

    async def write(fleet: Fleet) -> None:
        await fleet.store.commit([Notice(0.0, "odd", hostile, run, hostile)])
        await fleet.store.commit([PutLog(run, 1, [StoredChunk(1, 1, 1, [[0.0, "stdout", hostile]])])])

    await ask(scene, write)
    async with top(scene, "notices", (160, 24)) as pilot:
        await until(pilot, lambda: "[red]x[/]" in drawn(pilot))
        for key in ("enter", "escape", "2", "l"):
            assert not set(drawn(pilot)) & {"\x1b", "\x07", "\u202e"}
            await pilot.press(key)
            await until(pilot, lambda: "[red]x[/]" in drawn(pilot))
        assert not set(drawn(pilot)) & {"\x1b", "\x07", "\u202e"}


def test_a_missing_store_is_an_error_before_the_terminal_changes(
    scene: SystemScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Exception, match="there is no store"):
        SystemThread(f"{scene.url}.other").__enter__()


def test_without_textual_the_command_says_what_to_install(scene: SystemScene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textual", None)
    result = scene.run("top")
    assert result.exit_code == 64
    assert "needs Textual: install the extra 'top'" in result.output


def test_without_a_terminal_the_command_names_others(scene: SystemScene) -> None:
    result = scene.run("top")
    assert result.exit_code == 64
    assert "asterism runs watch" in result.output
