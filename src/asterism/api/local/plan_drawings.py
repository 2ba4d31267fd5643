"""Drawings of plans as documents."""

from __future__ import annotations

from collections.abc import Callable, Collection

from asterism.api.documents import Drawing, TextStyle
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.node import Node
from asterism.orchestrator.plan_mask import PlanMask
from asterism.report import mermaid, terminal
from asterism.report.picture import picture


def drawing(
    plan: Constellation,
    form: str,
    width: int = 80,
    opened: Collection[str] = (),
    phase: Callable[[Node], str | None] | None = None,
) -> Drawing:
    """A plan as ``text`` of at most ``width`` cells a line, or ``mermaid``. ``phase`` tells what running tasks
    do, ``opened`` which large groups are drawn task by task. Secrets are masked."""
    drawn = picture(plan, PlanMask(plan), phase=phase, opened=opened)
    if form == "text":
        text = terminal(drawn, width)
        styles = [TextStyle(start=span.start, end=span.end, style=str(span.style)) for span in text.spans]
        return Drawing(name=plan.id, form=form, text=text.plain, styles=styles)
    return Drawing(name=plan.id, form=form, text=mermaid(drawn))
