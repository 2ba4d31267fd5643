"""Logs of tasks as lines for people: the last lines of those that failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.text import Text

from asterism.base.status_colours import DIM
from asterism.base.text import clean
from asterism.core.attempt_log import GAP, STDERR, TRACEBACK, LogLine, TaskLog
from asterism.core.errors import truncate
from asterism.core.plan.status import FAILED
from asterism.orchestrator.result import Result

LAST_LINES = 10
"""How many lines of each failed task are shown."""

LAST_TRACEBACK_LINES = 40
"""How many, if they are a traceback."""

MOST_TASKS = 5
"""Of how many failed tasks lines are shown."""

LONGEST_LINE = 1000
"""How many characters of a long line are shown, of a log or of a reason: data in one line would fill the screen."""

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
