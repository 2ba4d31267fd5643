"""A picture in the terminal: an indented list, with a line for each task below a task that it depends on.

A task stands below the last of its dependencies. Those that the indentation does not show, and what a dependency asks
for other than success, are named after ``←``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from asterism.base.status_colours import BOLD, DIM, mark, tone
from asterism.base.text import clean, plural, shorten
from asterism.core.record import Record
from asterism.report.picture import DrawnEdge, DrawnTask, Picture, count_by_status, in_order

MOST_TASKS = 200
"""How many tasks are listed. In a larger plan, those that have completed are left out first."""

DEEPEST = 12
"""How many levels are indented; tasks further down stand below each other, and name their dependencies."""

WIDEST_CONDITION = 40
WIDEST_NAME = 60
NARROWEST_LABEL = 8
GAP = "  "


class Line(Record):
    """A task in the list, below the task ``under``."""

    task: DrawnTask
    depth: int
    under: str | None
    edges: tuple[DrawnEdge, ...]


def terminal(picture: Picture, width: int) -> Text:
    """List the tasks in at most `width` cells a line; legible without colour too.

    Raises `ValueError` for a picture that is not a graph without cycles.
    """
    lines = list_lines(picture)
    shown = lines
    if len(lines) > MOST_TASKS:
        shown = ([line for line in lines if line.task.status != "completed"] or lines)[:MOST_TASKS]
    deepest = min(DEEPEST, width // 8)
    heads = [min(line.depth, deepest) * 2 + 2 + cell_len(clean(line.task.id)) for line in shown]
    name = min(max(heads, default=0), WIDEST_NAME, max(12, width // 2))
    status = max((cell_len(clean(line.task.status)) for line in shown), default=0)
    known = {line.task.id for line in shown}
    texts = _heading(picture)
    texts += [_line(line, deepest, known, (name, status, width)) for line in shown]
    if left := Counter(line.task.status for line in lines) - Counter(line.task.status for line in shown):
        rest = ", ".join(f"{count:,} {clean(word)}" for word, count in in_order(left))
        texts.append(Text(f"and {plural(left.total(), 'more task')}: {rest}", DIM))
    for text in texts:
        text.rstrip()
        text.truncate(width, overflow="ellipsis")
    return Text("\n", no_wrap=True).join(texts)


def list_lines(picture: Picture) -> list[Line]:
    """The tasks in the order of the list: each after the dependency that it stands below."""
    below: dict[str | None, list[DrawnTask]] = {}
    incoming, depths, under = picture.incoming, dict[str, int](), dict[str, str | None]()
    for task in picture.in_order():
        parents = [edge.source for edge in incoming[task.id]]
        under[task.id] = max(parents, key=depths.__getitem__, default=None)
        depths[task.id] = 1 + max((depths[parent] for parent in parents), default=-1)
        below.setdefault(under[task.id], []).append(task)
    lines = []
    waiting = below.get(None, [])[::-1]
    while waiting:
        task = waiting.pop()
        lines.append(Line(task, depths[task.id], under[task.id], tuple(incoming[task.id])))
        waiting += below.get(task.id, [])[::-1]
    return lines


def _heading(picture: Picture) -> list[Text]:
    title = Text().append(clean(picture.title), BOLD)
    behind = sum(sum(drawn_task.behind.values()) for drawn_task in picture.tasks)
    edges = "" if behind else f", {plural(len(picture.edges), 'dependency')}"
    title.append(f"  {plural(len(picture.tasks) + behind, 'task')}{edges}", DIM)
    return [title, *([shares(picture.tasks), Text()] if picture.tasks else [])]


def _line(line: Line, deepest: int, known: set[str], widths: tuple[int, int, int]) -> Text:
    """``known`` are the tasks of the list; ``widths`` those of the names, of the statuses, and of the terminal."""
    task, (name, status, width) = line.task, widths
    text = (
        Text("  " * min(line.depth, deepest))
        .append(mark(task.status), tone(task.status))
        .append(" ")
        .append(clean(task.id), BOLD)
    )
    text.truncate(name, overflow="ellipsis", pad=True)
    word = Text(clean(task.status), tone(task.status))
    word.truncate(status, pad=True)
    text.append(GAP).append_text(word)
    rest = _rest(line, line.under if line.depth <= deepest and line.under in known else None)
    label = "" if task.label == task.id else clean(task.label)
    room = width - text.cell_len - len(GAP) - (rest.cell_len + len(GAP) if rest else 0)
    if label and room >= NARROWEST_LABEL:
        text.append(GAP).append(shorten(label, room))
    return text.append(GAP).append_text(rest) if rest else text


def _rest(line: Line, under: str | None) -> Text:
    """The dependencies that the indentation does not show, those with a condition first, then the note."""
    edges = [edge for edge in line.edges if edge.source != under or edge.words]
    rest = Text()
    for turn, edge in enumerate(sorted(edges, key=lambda edge: edge.kind == "success")):
        rest.append(", " if turn else "← ", DIM).append(clean(edge.source), DIM)
        if edge.words:
            rest.append(f" ({shorten(edge.words, WIDEST_CONDITION)})", line_tone(edge.kind))
    if line.task.note:
        rest.append(f"{GAP if rest else ''}[{clean(line.task.note)}]")
    return rest


def line_tone(kind: str) -> Style:
    """The style of the words of a dependency that asks for more than success."""
    return Style(color={"failure": "red", "condition": "magenta"}.get(kind))


def shares(drawn_tasks: Iterable[DrawnTask]) -> Text:
    """The counts in words: `1 failed, 3 running`."""
    counts = count_by_status(drawn_tasks)
    return Text(", ").join(Text(f"{count:,} {clean(status)}", tone(status)) for status, count in counts)
