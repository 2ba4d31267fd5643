"""A large picture in a few lines: how many tasks of which status lie in which layers."""

from __future__ import annotations

from math import ceil

from rich.text import Text

from asterism.report.drawing_graph import Graph
from asterism.report.picture import Picture, Star
from asterism.report.status_style import DIM, count_by_status, mark, shares, tone

MOST_BANDS = 40
WIDEST_BAR = 24


def overview(picture: Picture, graph: Graph, width: int) -> list[Text]:
    """One line for each layer, or for each run of layers when there are many."""
    bands = _bands(picture, graph)
    names = [name for name, _ in bands]
    name_width = max(map(len, ("layer", *names)))
    most = max(len(stars) for _, stars in bands)
    count_width = len(f"{most:,}")
    bar_width = max(0, min(WIDEST_BAR, width - name_width - count_width - 40))
    lines = [Text(f"{'layer':>{name_width}}  tasks", DIM)]
    for name, stars in bands:
        line = Text(f"{name:>{name_width}}  {len(stars):>{max(count_width, 5)},}  ")
        line.append_text(_bar(stars, most, bar_width))
        line.append_text(shares(stars))
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return lines


def _bands(picture: Picture, graph: Graph) -> list[tuple[str, list[Star]]]:
    deep = max(graph.layers) + 1
    size = ceil(deep / MOST_BANDS)
    bands: list[list[Star]] = [[] for _ in range(ceil(deep / size))]
    for star, layer in zip(picture.stars, graph.layers, strict=True):
        bands[layer // size].append(star)
    lasts = [min(deep, (number + 1) * size) for number in range(len(bands))]
    return [(_name(number * size + 1, lasts[number]), stars) for number, stars in enumerate(bands)]


def _name(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,}-{last:,}"


def _bar(stars: list[Star], most: int, width: int) -> Text:
    """A bar as long as the band is large, in one stretch for each status."""
    bar = Text()
    length = ceil(width * len(stars) / most)
    drawn = counted = 0
    for status, count in count_by_status(stars):
        counted += count
        end = round(length * counted / len(stars))
        bar.append(mark(status) * (end - drawn), tone(status))
        drawn = end
    bar.append(" " * (width - drawn + 2))
    return bar
