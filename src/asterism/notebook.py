"""Plans in a notebook, without a server: the graph and the tasks of a plan, live while it runs (extra ``notebook``).

::

    %load_ext asterism.notebook                                # now a cell that ends in a plan or a result draws it

    from asterism.notebook import run

    result = await run(Orchestrator([LocalDevice()]), plan)    # draws the plan below the cell, again after each change

The drawing is an image beside a table, without scripts: a saved notebook shows it as it was last. Secrets are masked.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from asterism.base.durations import format_duration
from asterism.base.startup import install_hint
from asterism.base.text import markup, plural, shorten
from asterism.core.errors import AsterismError
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.node import Node
from asterism.core.plan.plan_end import time_at_rest
from asterism.orchestrator.plan_mask import PlanMask
from asterism.orchestrator.result import Result
from asterism.report.picture import Picture, counts_text, in_order, picture
from asterism.report.result_report import task_row
from asterism.report.svg import svg

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from asterism.durable.durable_orchestrator import DurableOrchestrator
    from asterism.orchestrator.events import Event
    from asterism.orchestrator.orchestrator import Orchestrator

__all__ = ["load_ipython_extension", "plan_html", "run"]

PERIOD = 0.25
"""Seconds between two drawings of a plan that runs."""

MOST_DRAWN = 200
MOST_ROWS = 100
LONGEST_CELL = 200
COLUMNS = ("Task", "Status", "Device", "Duration", "Result or reason")


def load_ipython_extension(ipython: InteractiveShell) -> None:
    """What ``%load_ext asterism.notebook`` does: plans and results are drawn wherever a notebook shows a value."""
    if ipython.display_formatter is not None:
        formatter = ipython.display_formatter.formatters["text/html"]
        formatter.for_type(Constellation, plan_html)
        formatter.for_type(Result, lambda result: plan_html(result.plan))


async def run(orchestrator: Orchestrator | DurableOrchestrator, plan: Constellation, **options: Any) -> Result:
    """Run a plan as ``orchestrator.run(plan, **options)`` does, and draw it below the cell while it runs."""
    try:
        shown: Any = import_module("IPython.display")  # it has no types
    except ImportError as error:
        raise AsterismError(f"a live view in a notebook needs IPython: {install_hint('notebook')}") from error
    drawn = shown.display(shown.HTML(plan_html(plan)), display_id=True)

    def draw() -> None:
        if drawn is not None:  # there is no display outside IPython
            drawn.update(shown.HTML(plan_html(plan, orchestrator.now())))

    drawing = asyncio.create_task(_draw_changes(orchestrator, plan, draw))
    try:
        return await orchestrator.run(plan, **options)
    finally:
        drawing.cancel()
        with suppress(asyncio.CancelledError):
            await drawing
        draw()


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


def plan_html(plan: Constellation, now: float | None = None) -> str:
    """A plan as HTML: its state, its graph and its tasks, those first that a reader looks for. Any text is safe in it.

    ``now`` is the clock of the orchestrator, for the durations of what runs. Large plans are shown in part."""
    secrets, nodes = PlanMask(plan), _by_urgency(plan)
    counts = counts_text(Counter(node.shown_status for node in nodes)) or "no tasks"
    end = plan.ended_at if plan.ended_at is not None else now
    took = ""
    if plan.started_at is not None and end is not None:
        took = f" after {format_duration(end - plan.started_at - time_at_rest(plan))}"
    head = f"<p><strong>{markup(plan.id)}</strong>: {markup(plan.state_text)}{took}; {counts}</p>"
    return f"<div>{head}{_graph(picture(plan, secrets), counts)}{_table(plan, nodes, secrets, now)}</div>"


def _by_urgency(plan: Constellation) -> list[Node]:
    found: dict[str, list[Node]] = {}
    for node in plan.nodes.values():
        found.setdefault(node.shown_status, []).append(node)
    counts = {status: len(nodes) for status, nodes in found.items()}
    return [node for status, _ in in_order(counts) for node in found[status]]


def _graph(shown: Picture, counts: str) -> str:
    if not shown.tasks:
        return ""
    if len(shown.tasks) > MOST_DRAWN:
        return f"<p>A graph of more than {MOST_DRAWN} tasks is not drawn.</p>"
    # As an image, its styles are its own, and it follows the colours of the reader.
    data = b64encode(svg(shown).encode()).decode()
    alt = markup(f"Graph of {shown.title}: {counts}")
    return f'<img alt="{alt}" style="max-width: 100%" src="data:image/svg+xml;base64,{data}">'


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
    row = task_row(node, value, secrets)
    end = row.end if row.end is not None else now
    took = "" if row.start is None or end is None else format_duration(max(0.0, end - row.start))
    cells = (node.shown_status, row.device, took, shorten(row.reason or row.value, LONGEST_CELL))
    return f'<tr><th scope="row">{markup(row.id)}</th>{"".join(f"<td>{markup(cell)}</td>" for cell in cells)}</tr>'
