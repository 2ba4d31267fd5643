"""Plans in a notebook, without a server: the tasks of a plan, live while it runs, and its report (extra ``notebook``).

::

    %load_ext asterism.notebook                                # now a cell that ends in a plan or a result shows it

    from asterism.notebook import run

    result = await run(Orchestrator([LocalDevice()]), plan)    # shows the plan below the cell, again after each change

While a plan runs, its tasks are a table. A plan that does not run is shown as its report: the page of the server with
its data inside, in a frame without access to the notebook. The table stays below it: a notebook that is not trusted
removes the frame. Secrets are masked.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from asterism.base.durations import format_duration
from asterism.base.startup import install_hint
from asterism.base.text import markup, plural, shorten
from asterism.core.errors import AsterismError, error_text
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.node import Node
from asterism.core.plan.plan_end import time_at_rest
from asterism.orchestrator.plan_mask import PlanMask
from asterism.orchestrator.result import Result
from asterism.report.html_report import report
from asterism.report.picture import counts_text, in_order
from asterism.report.result_report import Recording, report_of
from asterism.report.result_summary import short_value

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from asterism.durable.durable_orchestrator import DurableOrchestrator
    from asterism.orchestrator.events import Event
    from asterism.orchestrator.orchestrator import Orchestrator

__all__ = ["load_ipython_extension", "plan_html", "result_html", "run"]

PERIOD = 0.25
"""Seconds between two drawings of a plan that runs."""

MOST_ROWS = 100
LONGEST_CELL = 200
HEIGHT = 620
"""How high the frame of a report is, in pixels."""
COLUMNS = ("Task", "Status", "Device", "Duration", "Result or reason")


def load_ipython_extension(ipython: InteractiveShell) -> None:
    """What ``%load_ext asterism.notebook`` does: plans and results are shown wherever a notebook shows a value."""
    if ipython.display_formatter is not None:
        formatter = ipython.display_formatter.formatters["text/html"]
        formatter.for_type(Constellation, plan_html)
        formatter.for_type(Result, result_html)


async def run(orchestrator: Orchestrator | DurableOrchestrator, plan: Constellation, **options: Any) -> Result:
    """Run a plan as ``orchestrator.run(plan, **options)`` does, and show it below the cell while it runs."""
    try:
        shown: Any = import_module("IPython.display")  # it has no types
    except ImportError as error:
        raise AsterismError(f"a live view in a notebook needs IPython: {install_hint('notebook')}") from error
    drawn = shown.display(shown.HTML(_tasks_html(plan)), display_id=True)

    def draw(html: str) -> None:
        if drawn is not None:  # there is no display outside IPython
            drawn.update(shown.HTML(html))

    recording = Recording(plan, orchestrator.events)
    drawing = asyncio.create_task(
        _draw_changes(orchestrator, plan, lambda: draw(_tasks_html(plan, orchestrator.now())))
    )
    result: Result | None = None
    try:
        result = await orchestrator.run(plan, **options)
        return result
    finally:
        drawing.cancel()
        recording.close()
        with suppress(asyncio.CancelledError):
            await drawing
        draw(_tasks_html(plan, orchestrator.now()) if result is None else result_html(result, recording))


async def _draw_changes(
    orchestrator: Orchestrator | DurableOrchestrator, plan: Constellation, draw: Callable[[], None]
) -> None:
    changed = asyncio.Event()

    def observe(event: Event) -> None:
        if event.constellation == plan.id:
            changed.set()

    subscription = orchestrator.events.subscribe(observe)
    try:
        while True:
            await changed.wait()
            changed.clear()
            draw()
            await asyncio.sleep(PERIOD)
    finally:
        subscription.close()


def plan_html(plan: Constellation) -> str:
    """A plan as HTML: its report and its tasks. Any text is safe in it."""
    return result_html(Result(plan, [], None, "scoped"))


def result_html(result: Result, recording: Recording | None = None) -> str:
    """A result as HTML: its report and its tasks. Any text is safe in it."""
    if not len(result.plan):
        return _tasks_html(result.plan)
    page = escape(report(report_of(result, recording)))
    style = f"width: 100%; height: {HEIGHT}px; border: 1px solid #8885; border-radius: 8px"
    frame = (
        f'<iframe sandbox="allow-scripts" style="{style}" title="{markup(result.plan.id)}" srcdoc="{page}"></iframe>'
    )
    return f"{frame}<details><summary>Tasks</summary>{_tasks_html(result.plan)}</details>"


def _tasks_html(plan: Constellation, now: float | None = None) -> str:
    """A plan as a table: its state, and its tasks, those first that a reader looks for. Any text is safe in it.

    ``now`` is the clock of the orchestrator, for the durations of what runs. Large plans are shown in part."""
    secrets, nodes = PlanMask(plan), _by_urgency(plan)
    counts = counts_text(Counter(node.shown_status for node in nodes)) or "no tasks"
    end = plan.ended_at if plan.ended_at is not None else now
    took = ""
    if plan.started_at is not None and end is not None:
        took = f" after {format_duration(end - plan.started_at - time_at_rest(plan))}"
    head = f"<p><strong>{markup(plan.id)}</strong>: {markup(plan.state_text)}{took}; {counts}</p>"
    return f"<div>{head}{_table(plan, nodes, secrets, now)}</div>"


def _by_urgency(plan: Constellation) -> list[Node]:
    found: dict[str, list[Node]] = {}
    for node in plan.nodes.values():
        found.setdefault(node.shown_status, []).append(node)
    counts = {status: len(nodes) for status, nodes in found.items()}
    return [node for status, _ in in_order(counts) for node in found[status]]


def _table(plan: Constellation, nodes: list[Node], secrets: PlanMask, now: float | None) -> str:
    if not nodes:
        return ""
    # To mask every result of a large plan takes time: they are shown when it has ended.
    values = secrets.results() if plan.ended_at is not None else {}
    rows = "".join(_row(node, values.get(node.id), secrets, now) for node in nodes[:MOST_ROWS])
    heads = "".join(f'<th scope="col">{column}</th>' for column in COLUMNS)
    more = len(nodes) - MOST_ROWS
    rest = f"<p>and {plural(more, 'more task')}</p>" if more > 0 else ""
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{rest}"


def _row(node: Node, value: object, secrets: PlanMask, now: float | None) -> str:
    start, end = node.span or (None, None)
    took = "" if start is None or (end or now) is None else format_duration(max(0.0, (end or now or 0.0) - start))
    text = error_text(node.error) or node.reason or short_value(value)
    cells = (node.shown_status, node.device or "", took, shorten(secrets.shown(text), LONGEST_CELL))
    return f'<tr><th scope="row">{markup(node.id)}</th>{"".join(f"<td>{markup(cell)}</td>" for cell in cells)}</tr>'
