"""The result of a plan as figures and lines for people, with the end of what failed tasks printed, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.style import Style
from rich.text import Text

from asterism.base.durations import format_duration
from asterism.base.status_colours import DIM, tone
from asterism.base.text import clean, json_text, plural, shorten
from asterism.core.attempt_log import GAP, STDERR, TRACEBACK, LogLine, TaskLog
from asterism.core.errors import error_text, truncate
from asterism.core.json_values import JsonObject, plain_json
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.node import Node, handler_of
from asterism.core.plan.status import COMPLETED, FAILED, ConstellationState, TaskStatus
from asterism.core.plan.topological_order import parents_first
from asterism.orchestrator.plan_mask import PlanMask
from asterism.orchestrator.result import Result
from asterism.report.event_text import reason

LONGEST_LINE = 1000
"""How many characters of a long line are shown, of a log or of a reason: data in one line would fill the screen."""

MOST_NAMES = 8
WIDEST_FIGURE = len("Makespan over bound")
MOST_REASONS = 20
MOST_RESULTS = 10
WIDEST_NAME = 40
NARROWEST_VALUE = 20


def figures(result: Result) -> tuple[tuple[str, str], ...]:
    """Names and values. L is the longest chain of work, W is all work; no schedule beats the lower bound."""
    summary = result.summary
    shape = summary.parallelism
    over = f"{summary.makespan / summary.lower_bound:.2f} ×" if summary.lower_bound else ""
    return (
        ("State", result.plan.state_text),
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
        *([("Editor", str(result.editor_cost))] if result.editor_cost else []),
    )


def counts(result: Result) -> str:
    """``12 completed, 1 failed``."""
    numbers = result.plan.counts
    counted = [f"{numbers[status]:,} {status}" for status in TaskStatus if numbers[status]]
    return ", ".join(counted) or plural(0, "task")


def summary_lines(result: Result) -> list[Text]:
    """The figures for a terminal, one per line."""
    return _fact_lines(figures(result), result.state)


def _fact_lines(rows: Sequence[tuple[str, str]], state: ConstellationState) -> list[Text]:
    return [
        Text.assemble((f"{name:<{WIDEST_FIGURE}}  ", DIM), (clean(value), state_tone(state) if name == "State" else ""))
        for name, value in rows
    ]


def state_lines(result: Result) -> list[Text]:
    """The state of the plan, how many tasks ended how, and how long it took."""
    state, tasks, (_, makespan), *_ = figures(result)
    return _fact_lines([state, tasks, ("Time", makespan)], result.state)


def produced_lines(result: Result, width: int) -> list[Text]:
    """What a plan produced, for a terminal of this width: a title, and a line for each result of its last tasks."""
    values = PlanMask(result.plan).results()
    last = [(node.id, short_value(values[node.id])) for node in last_completed(result.plan)]
    shown = [(task_id, value) for task_id, value in last if value]
    if not shown:
        return []
    names = [shorten(task_id, WIDEST_NAME) for task_id, _ in shown[:MOST_RESULTS]]
    wide = max([WIDEST_FIGURE - 2, *map(cell_len, names)])
    lines = [Text("Results", DIM)]
    for name, (_, value) in zip(names, shown, strict=False):
        room = max(NARROWEST_VALUE, width - wide - 4)
        lines.append(Text.assemble((f"  {set_cell_size(name, wide)}  ", DIM), shorten(value, room)))
    if len(shown) > MOST_RESULTS:
        lines.append(Text(f"  and {len(shown) - MOST_RESULTS:,} more", DIM))
    return lines


def last_completed(plan: Constellation) -> list[Node]:
    """The completed tasks below which no task completed: their results are what the plan produced."""
    followed: set[Node] = set()
    for node in reversed(parents_first(plan.nodes.values())):
        if any(child.status is COMPLETED or child in followed for child in node.children.values()):
            followed.add(node)
    return [node for node in plan.nodes.values() if node.status is COMPLETED and node not in followed]


def short_value(value: Any) -> str:
    """A result on one line: text as it is, anything else as JSON. Of several lines, the first and their number."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return json_text(plain_json(value, "the result"))
    lines = [line for line in value.splitlines() if line.strip()]
    return lines[0] if len(lines) == 1 else f"{lines[0]} … ({len(lines):,} lines)" if lines else ""


def failure_reasons(result: Result) -> list[str]:
    """The tasks that did not complete, each with the reason; at most ``MOST_REASONS``."""
    secrets = PlanMask(result.plan)
    cancelled = {entry.task: entry.why for entry in result.story() if entry.what == "cancelled"}
    ends = [node for node in result.plan.nodes.values() if node.status in (TaskStatus.FAILED, TaskStatus.CANCELLED)]
    first = ends[:MOST_REASONS]
    texts = [f"{node.id} {_end(node)}: {reason(node.error) or cancelled.get(node.id, '')}" for node in first]
    shown = [clean(truncate(secrets.shown(text), LONGEST_LINE)) for text in texts]
    return [*shown, *([f"and {len(ends) - MOST_REASONS:,} more"] if len(ends) > MOST_REASONS else [])]


def _end(node: Node) -> str:
    handler = handler_of(node) if node.status is TaskStatus.FAILED else None
    return str(node.status) if handler is None else f"{node.status}, handled by {handler.id}"


def state_tone(state: ConstellationState) -> Style:
    """The colour of a plan's state: that of the most similar task status."""
    return tone({"executing": "running", "partially_failed": "waiting"}.get(state, str(state)))


def _path(path: tuple[str, ...]) -> str:
    if len(path) <= MOST_NAMES:
        return " → ".join(path)
    half = MOST_NAMES // 2
    return " → ".join([*path[:half], f"({len(path) - MOST_NAMES:,} more)", *path[-half:]])


def result_json(result: Result) -> JsonObject:
    """The result of a plan: its state, figures and tasks. Times are seconds since 1970. Secrets are masked."""
    plan, summary = result.plan, result.summary
    secrets = PlanMask(plan)
    values = secrets.results()
    reasons = {entry.task: entry.why for entry in result.story() if entry.what == "cancelled"}
    return {
        "id": plan.id,
        "state": str(result.state),
        "repaired": plan.repaired,
        "exit_code": result.exit_code,
        "version": plan.version,
        "started_at": plan.started_at,
        "ended_at": plan.ended_at,
        "summary": {
            "makespan": summary.makespan,
            "lower_bound": summary.lower_bound,
            "critical_path": summary.parallelism.critical_path,
            "path": list(summary.parallelism.path),
            "work": summary.parallelism.work,
            "parallelism": summary.parallelism.ratio,
            "held": summary.held,
            "cycles": summary.cycles,
            "edits_accepted": summary.edits_accepted,
            "edits_rejected": summary.edits_rejected,
            **({"editor": result.editor_cost.to_json()} if result.editor_cost else {}),
        },
        "tasks": {node.id: _task(node, reasons.get(node.id, ""), values, secrets) for node in plan.nodes.values()},
    }


def _task(node: Node, reason: str, values: Mapping[str, Any], secrets: PlanMask) -> JsonObject:
    out: JsonObject = {
        "status": str(node.status),
        "device": node.device,
        "attempts": node.attempts,
        "started_at": node.started_at,
        "ended_at": node.ended_at,
        **({} if (times := node.attempt_times) is None else {"attempt": times.to_json()}),
    }
    if node.status is TaskStatus.FAILED and (handler := handler_of(node)) is not None:
        out["handled_by"] = handler.id
    if node.id in values:
        out["value"] = plain_json(values[node.id], f"the result of task {node.id!r}")
    if node.status is not COMPLETED and (node.error is not None or reason):
        out["reason"] = secrets.shown(error_text(node.error) or reason)
    return out


# -- logs --------------------------------------------------------------------------------------------------------------


LAST_LINES = 10
"""How many lines of each failed task are shown."""

LAST_TRACEBACK_LINES = 40
"""How many, if they are a traceback."""

MOST_TASKS = 5
"""Of how many failed tasks lines are shown."""

LogsOf = Callable[[str], Sequence[TaskLog]]
"""The logs of a task, one for each attempt that printed something."""


def failed_tasks(result: Result, limit: int = MOST_TASKS) -> list[str]:
    """The first failed tasks whose last lines are shown."""
    return [node.id for node in result.plan.nodes.values() if node.status is FAILED][:limit]


def failure_logs(result: Result, logs_of: LogsOf) -> Iterator[Text]:
    """The last lines of each failed task, under a heading. Failed tasks that printed nothing are left out."""
    for task_id in failed_tasks(result):
        logs = logs_of(task_id)
        if not logs:
            continue
        lines = _joined(line for line in logs[-1].lines if line.text.strip())
        traceback = sum(line.stream == TRACEBACK for line in lines)
        shown = lines[-max(LAST_LINES, min(traceback, LAST_TRACEBACK_LINES)) :]
        attempt = f", attempt {logs[-1].attempt}" if logs[-1].attempt > 1 else ""
        part = "" if len(shown) == len(lines) else f" (the last {len(shown)} lines)"
        yield Text()
        yield Text(clean(f"Output of {task_id}{attempt}{part}:"))
        for line in shown:
            yield log_text(line, "  ")


def _joined(lines: Iterable[LogLine]) -> list[LogLine]:
    """Long lines that follow each other as one: a log cuts a line that is very long into several."""
    joined: list[LogLine] = []
    for line in lines:
        if joined and joined[-1].stream == line.stream and min(len(joined[-1].text), len(line.text)) > LONGEST_LINE:
            line = line._replace(text=joined.pop().text + line.text)
        joined.append(line)
    return joined


def log_text(line: LogLine, indent: str = "") -> Text:
    """A line of a log in the colour of its stream; of a long one the beginning and the end."""
    style = DIM if line.stream == GAP else "red" if line.stream in (STDERR, TRACEBACK) else ""
    return Text(indent).append(clean(truncate(line.text, LONGEST_LINE)), style)
