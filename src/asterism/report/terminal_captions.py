"""What is written beside a task in the terminal, and how wide each column of it may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from asterism.base.text import clean, shorten
from asterism.report.drawing_graph import Graph
from asterism.report.picture import Line, Picture, Star
from asterism.report.status_style import BOLD, DIM, line_tone, tone

WIDEST_ID = 28
WIDEST_CONDITION = 40
NARROWEST_LABEL = 8
NARROWEST_REST = 24
USUAL_REST = 40  # labels give way to the rest of the line up to this width
GAP = "  "


@dataclass(frozen=True, slots=True)
class Caption:
    """The words of one task. `label` is empty when it would only repeat the id; `note` may be empty."""

    id: str
    label: str
    status: str
    parents: tuple[Text, ...]
    note: str

    @property
    def rest(self) -> Text:
        """The parents, those with a condition first so that cutting the line spares them, then the note."""
        rest = Text()
        for turn, parent in enumerate(self.parents):
            rest.append(", " if turn else "← ", DIM).append_text(parent)
        if self.note:
            rest.append(f"{GAP if rest else ''}[{self.note}]")
        return rest


@dataclass(frozen=True, slots=True)
class Columns:
    """Widths in cells; a column of width 0 is left out."""

    id: int
    label: int
    status: int
    rest: int


def captions(picture: Picture, graph: Graph) -> list[Caption]:
    """The captions of all tasks, by their number in the graph."""
    incoming: list[list[Line]] = [[] for _ in picture.stars]
    for line, (_, target) in zip(picture.lines, graph.edges, strict=True):
        incoming[target].append(line)
    return [_caption(star, lines) for star, lines in zip(picture.stars, incoming, strict=True)]


def _caption(star: Star, incoming: Sequence[Line]) -> Caption:
    conditions_first = sorted(incoming, key=lambda line: line.kind == "success")
    return Caption(
        id=clean(star.id),
        label="" if star.label == star.id else clean(star.label),
        status=clean(star.status),
        parents=tuple(_parent(line) for line in conditions_first),
        note=clean(star.note),
    )


def _parent(line: Line) -> Text:
    parent = Text().append(clean(line.source), DIM)
    if line.words:
        parent.append(f" ({shorten(line.words, WIDEST_CONDITION)})", line_tone(line.kind))
    return parent


def fit(words: Sequence[Caption], room: int) -> Columns | None:
    """Columns that use at most `room` cells, or None when there is too little to be legible."""
    name = min(WIDEST_ID, _widest([caption.id for caption in words]))
    label = _widest([caption.label for caption in words])
    status = _widest([caption.status for caption in words])
    rest = max(caption.rest.cell_len for caption in words)
    gap = len(GAP)
    room -= name + gap + status
    if room < (min(rest, NARROWEST_REST) + gap if rest else 0):
        return None
    spare = room - (min(rest, USUAL_REST) + gap if rest else 0) - gap
    label = min(label, spare) if spare >= NARROWEST_LABEL else 0
    room -= label + gap if label else 0
    return Columns(name, label, status, max(0, min(rest, room - gap)))


def _widest(texts: Sequence[str]) -> int:
    return max(map(cell_len, texts))


def write(caption: Caption, columns: Columns) -> Text:
    """One line of words, in columns."""
    cells = [_cell(Text(caption.id, BOLD), columns.id)]
    if columns.label:
        cells.append(_cell(Text(caption.label), columns.label))
    cells.append(_cell(Text(caption.status, tone(caption.status)), columns.status))
    if columns.rest:
        cells.append(_cell(caption.rest, columns.rest))
    line = Text(GAP).join(cells)
    line.rstrip()
    return line


def _cell(text: Text, width: int) -> Text:
    text = text.copy()
    text.truncate(width, overflow="ellipsis", pad=True)
    return text
