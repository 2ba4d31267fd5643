"""Plans in a notebook: what real IPython shows of them, live and at the end."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

from asterism import Constellation, LocalDevice, Orchestrator, Result, Task, edits, notebook
from asterism.core.errors import AsterismError


class Displays(CapturingDisplayPublisher):
    """What was displayed; a test can wait for the next."""

    def __init__(self) -> None:
        super().__init__()
        self._displayed = asyncio.Event()

    def publish(self, *args: Any, **options: Any) -> None:
        super().publish(*args, **options)
        self._displayed.set()

    async def next_display(self) -> None:
        self._displayed.clear()
        await asyncio.wait_for(self._displayed.wait(), 60)


@pytest.fixture
def shell() -> Iterator[Any]:
    """An IPython that keeps what it displays."""
    shell = InteractiveShell.instance()
    shell.display_pub = Displays()
    yield shell
    InteractiveShell.clear_instance()


def shown(shell: Any) -> list[tuple[bool, str]]:
    """Each display: whether it replaces the one before, and its HTML."""
    return [(output["update"], output["data"]["text/html"]) for output in shell.display_pub.outputs]


def rows(html: str) -> list[list[str]]:
    found = re.findall(r"<tr>(<th scope=\"row\".*?)</tr>", html)
    return [re.findall(r">([^<]*)</t[hd]>", row) for row in found]


def data(html: str) -> Any:
    """The documents in the frame of a report."""
    found = re.search(r'<iframe sandbox="allow-scripts"[^>]* srcdoc="([^"]*)"', html)
    assert found
    return json.loads(unescape(found[1]).partition(' id="data">')[2].partition("</script>")[0])


async def no_work() -> int:
    return 1


async def test_a_plan_is_drawn_again_while_it_runs(shell: Any) -> None:
    gate = asyncio.Event()

    async def first() -> str:
        return "one"

    async def second() -> str:
        await gate.wait()
        return "two"

    async def repair(view: object, events: object) -> list[edits.AddTask]:
        return [edits.AddTask(Task("third", call=no_work))] if "third" not in plan else []

    plan = Constellation("nightly")
    plan.add(Task("first", call=first))
    plan.add(Task("second", call=second), after="first")
    orchestrator = Orchestrator([LocalDevice("laptop", slots=2)], editor=repair)
    running = asyncio.create_task(notebook.run(orchestrator, plan))
    await shell.display_pub.next_display()
    while ["second", "running"] not in [row[:2] for row in rows(shown(shell)[-1][1])]:
        await shell.display_pub.next_display()
    gate.set()
    result = await running

    assert result["second"].value == "two"
    displays = shown(shell)
    assert [update for update, _ in displays] == [False, *[True] * (len(displays) - 1)], "one place, which changes"
    before, end = displays[0][1], displays[-1][1]
    assert [row[:2] for row in rows(before)] == [["second", "waiting"], ["first", "pending"]]
    assert [[row[0], row[1], row[2], row[4]] for row in rows(end)] == [
        ["first", "completed", "laptop", "one"],
        ["second", "completed", "laptop", "two"],
        ["third", "completed", "laptop", "1"],
    ]
    assert "<strong>nightly</strong>: completed after " in end
    assert "third" in data(end)["tasks"], "a task that an edit has added"
    assert data(end)["versions"]["items"][0]["changes"] == ["add task 'third'"]
    assert all("<iframe" not in html for _, html in displays[:-1]), "the report comes at the end"
    assert not orchestrator.events.subscriptions


async def test_a_plan_that_fails_shows_why_first_and_any_text_is_safe(shell: Any) -> None:
    async def broken() -> None:
        raise RuntimeError("no <b>disk</b>")

    plan = Constellation("<i>plan</i>")
    plan.add(Task("a", call=no_work))
    plan.add(Task("b<img>", call=broken))
    await notebook.run(Orchestrator([LocalDevice("laptop")]), plan)
    end = shown(shell)[-1][1]
    assert rows(end)[0][:2] == ["b&lt;img&gt;", "failed"]
    assert rows(end)[0][4] == "RuntimeError: no &lt;b&gt;disk&lt;/b&gt;"
    assert data(end)["plan"]["name"] == "<i>plan</i>"
    assert not re.search("<(i|b|img|script)[ >]", end)


async def test_the_extension_draws_a_plan_and_a_result_that_end_a_cell(shell: Any) -> None:
    plan = Constellation("nightly")
    plan.add(Task("a", call=no_work))
    shell.run_line_magic("load_ext", "asterism.notebook")
    data, _ = shell.display_formatter.format(plan)
    assert rows(data["text/html"]) == [["a", "pending", "", "", ""]]
    result = await Orchestrator([LocalDevice("laptop")]).run(plan)
    data, _ = shell.display_formatter.format(result)
    assert isinstance(result, Result)
    assert [row[:3] for row in rows(data["text/html"])] == [["a", "completed", "laptop"]]


def test_a_large_plan_is_shown_in_part() -> None:
    plan = Constellation("large")
    for number in range(notebook.MOST_ROWS + 1):
        plan.add(Task(f"task-{number}", call=no_work))
    html = notebook.plan_html(plan)
    assert len(data(html)["plan"]["tasks"]) == notebook.MOST_ROWS + 1
    assert len(rows(html)) == notebook.MOST_ROWS
    assert "and 1 more task<" in html


def test_secrets_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "geheim-123")
    plan = Constellation("nightly")
    plan.add(Task("a", shell="echo $token geheim-123", inputs={"token": {"secret": "TOKEN"}}))
    assert "geheim-123" not in notebook.plan_html(plan)


async def test_without_ipython_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    with pytest.raises(AsterismError, match="a live view in a notebook needs IPython: "):
        await notebook.run(Orchestrator([LocalDevice("laptop")]), Constellation("nightly"))
