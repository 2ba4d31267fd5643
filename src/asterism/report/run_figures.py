"""How a run went, in figures."""

from __future__ import annotations

from rich.style import Style
from rich.text import Text

from asterism.base.durations import format_duration
from asterism.base.text import clean, plural
from asterism.core.plan.status import ConstellationState, TaskStatus
from asterism.orchestrator.plan_mask import PlanMask
from asterism.orchestrator.result import Result
from asterism.report.event_text import reason
from asterism.report.status_style import DIM, tone

MOST_NAMES = 8
MOST_REASONS = 20


def figures(result: Result) -> tuple[tuple[str, str], ...]:
    """Names and values. L is the longest chain of work, W all work, and no schedule beats the lower bound."""
    summary = result.summary
    shape = summary.parallelism
    over = f"{summary.makespan / summary.lower_bound:.2f} ×" if summary.lower_bound else ""
    return (
        ("State", result.state.replace("_", " ")),
        ("Tasks", counts(result)),
        ("Makespan", format_duration(summary.makespan)),
        ("Lower bound", format_duration(summary.lower_bound)),
        ("Makespan over bound", over),
        ("Critical path L", format_duration(shape.critical_path)),
        ("Path", _path(shape.path)),
        ("Total work W", format_duration(shape.work)),
        ("Parallelism W/L", f"{shape.ratio:.2f}"),
        ("Time under hold", format_duration(summary.held)),
        ("Edits accepted", str(summary.edits_accepted)),
        ("Edits rejected", str(summary.edits_rejected)),
        ("Edit cycles", str(summary.cycles)),
    )


def counts(result: Result) -> str:
    """``12 completed, 1 failed``."""
    numbers = result.plan.counts
    told = [f"{numbers[status]:,} {status}" for status in TaskStatus if numbers[status]]
    return ", ".join(told) or plural(0, "task")


def lines(result: Result) -> list[Text]:
    """The figures for a terminal, one a line."""
    told = figures(result)
    wide = max(len(name) for name, _ in told)
    return [
        Text.assemble((f"{name:<{wide}}  ", DIM), (clean(value), state_tone(result.state) if name == "State" else ""))
        for name, value in told
    ]


def reasons(result: Result, secrets: PlanMask) -> list[str]:
    """The tasks that did not complete, each with the reason; only so many of them."""
    told = {entry.task: entry.why for entry in result.story() if entry.what == "cancelled"}
    ends = [node for node in result.plan.nodes.values() if node.status in (TaskStatus.FAILED, TaskStatus.CANCELLED)]
    shown = [
        clean(secrets.shown(f"{node.id} {node.status}: {reason(node.error) or told.get(node.id, '')}"))
        for node in ends[:MOST_REASONS]
    ]
    return [*shown, *([f"and {len(ends) - MOST_REASONS:,} more"] if len(ends) > MOST_REASONS else [])]


def state_tone(state: ConstellationState) -> Style:
    """The colour of a constellation's state: that of the task status which is most like it."""
    return tone({"executing": "running", "partially_failed": "waiting"}.get(state, str(state)))


def _path(path: tuple[str, ...]) -> str:
    if len(path) <= MOST_NAMES:
        return " → ".join(path)
    half = MOST_NAMES // 2
    return " → ".join([*path[:half], f"({len(path) - MOST_NAMES:,} more)", *path[-half:]])
