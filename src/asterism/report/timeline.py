"""The timeline of a plan as SVG: edit cycles and holds on top, then a group of lanes for each device.

``bands`` turns a report into bars on lanes, ``timeline`` draws them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from math import ceil

from rich.cells import cell_len

from asterism.base.durations import format_duration
from asterism.base.text import markup, plural, shorten
from asterism.core.record import Record
from asterism.report.report_data import CycleBar, ExecutionBar, Hold, Report
from asterism.report.svg import number

WIDTH = 1180.0
GUTTER = 140.0
RIGHT = 24.0
AXIS = 30.0
BAND_GAP = 14.0
NAME_CELLS = 18
CYCLE_LANE = 22.0
HOLD_LANE = 16.0
WIDEST_LANE = 24.0
NARROWEST_LANE = 3.0
LANES_HEIGHT = 900.0  # many lanes get thinner rather than make the drawing much higher than this
LANE_WITH_TEXT = 15.0
LETTER = 6.6
MOST_TICKS = 8


class _Scale(Record):
    """From seconds to pixels."""

    start: float
    span: float

    def x(self, at: float) -> float:
        share = (at - self.start) / self.span
        return GUTTER + min(1.0, max(0.0, share)) * (WIDTH - GUTTER - RIGHT)


class _Shelf(Record):
    """A band and where it lies."""

    band: Band
    top: float
    lane: float

    @property
    def bottom(self) -> float:
        return self.top + self.band.lanes * self.lane


def timeline(data: Report) -> str:
    """Draw the executions, cycles and holds of a report between its start and its end."""
    span = data.ended_at - data.started_at
    scale = _Scale(data.started_at, span if span > 0 else 1.0)  # a plan that took no time needs one too
    shelves = _stack(bands(data))
    bottom = shelves[-1].bottom if shelves else AXIS
    box = f"0 0 {number(WIDTH)} {number(bottom + 10.0)}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" role="img" viewBox="{box}">',
        "<title>Timeline</title>",
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse"'
        ' patternTransform="rotate(45)"><rect class="hatch" width="2.5" height="6"/></pattern></defs>',
        *_axis(scale, bottom),
        *(_shelf(shelf, scale) for shelf in shelves),
        *_veils(shelves, scale, bottom),
        "</svg>",
    ]
    return "\n".join(parts)


def _stack(all_bands: Sequence[Band]) -> list[_Shelf]:
    device_lanes = sum(band.lanes for band in all_bands if band.kind == "device")
    lane = max(NARROWEST_LANE, min(WIDEST_LANE, LANES_HEIGHT / max(1, device_lanes)))
    heights = {"cycles": CYCLE_LANE, "holds": HOLD_LANE, "device": lane}
    shelves: list[_Shelf] = []
    top = AXIS
    for band in all_bands:
        shelves.append(_Shelf(band, top, heights[band.kind]))
        top = shelves[-1].bottom + BAND_GAP
    return shelves


def _axis(scale: _Scale, bottom: float) -> list[str]:
    step = tick_step(scale.span, MOST_TICKS)
    ticks = []
    for turn in range(int(scale.span / step * (1 + 1e-9)) + 1):
        x = number(scale.x(scale.start + turn * step))
        ticks.append(
            f'<path class="tick" d="M{x} {number(AXIS - 8)} V{number(bottom)}"/>'
            f'<text class="time" x="{x}" y="14">{tick(turn * step, step)}</text>'
        )
    return ticks


def _shelf(shelf: _Shelf, scale: _Scale) -> str:
    band = shelf.band
    middle = (shelf.top + shelf.bottom) / 2
    lanes = [
        f'<rect class="lane" x="{number(GUTTER)}" y="{number(shelf.top + lane * shelf.lane)}"'
        f' width="{number(WIDTH - GUTTER - RIGHT)}" height="{number(shelf.lane)}"/>'
        for lane in range(band.lanes)
    ]
    name = (
        f'<g><title>{markup(band.name)}</title><text class="band {band.kind}" x="{number(GUTTER - 14)}"'
        f' y="{number(middle + 4)}">{markup(shorten(band.name, NAME_CELLS))}</text></g>'
    )
    return "\n".join([*lanes, name, *(_bar(bar, shelf, scale) for bar in band.bars)])


def _bar(bar: Bar, shelf: _Shelf, scale: _Scale) -> str:
    left = scale.x(bar.start)
    width = max(2.0, scale.x(bar.end) - left)  # never too thin to be seen
    inset = 1.5 if shelf.lane > 6 else 0.25
    top = shelf.top + bar.lane * shelf.lane + inset
    height = shelf.lane - 2 * inset
    text = _fitting(bar, width) if shelf.lane >= LANE_WITH_TEXT else ""
    baseline = number(top + height / 2 + 3.8)
    label = f'<text x="{number(left + 6)}" y="{baseline}">{markup(text)}</text>' if text else ""
    task = f' data-task="{markup(bar.task)}"' if bar.task else ""
    return (
        f'<g class="bar {markup(bar.look)}"{task}><title>{"&#10;".join(map(markup, bar.tooltip))}</title>'
        f'<rect x="{number(left)}" y="{number(top)}" width="{number(width)}" height="{number(height)}"'
        f' rx="{number(min(4.0, height / 3, width / 2))}"/>{label}</g>'
    )


def _fitting(bar: Bar, width: float) -> str:
    """What of the bar's text there is room for: all of it, a short form, or nothing."""
    return next((text for text in bar.texts if cell_len(text) * LETTER + 10 <= width), "")


def _veils(shelves: Sequence[_Shelf], scale: _Scale, bottom: float) -> list[str]:
    """The holds again, as translucent bands over the lanes of all devices."""
    veils = []
    for shelf in shelves[:-1]:
        if shelf.band.kind == "holds":
            for start, end in _joined(shelf.band.bars):
                left, right = scale.x(start), scale.x(end)
                veils.append(
                    f'<rect class="veil" x="{number(left)}" y="{number(shelf.bottom)}"'
                    f' width="{number(right - left)}" height="{number(bottom - shelf.bottom)}"/>'
                )
    return veils


def _joined(bars: Sequence[Bar]) -> list[tuple[float, float]]:
    """The stretches that the bars cover, without seams where one begins as the other ends."""
    stretches: list[tuple[float, float]] = []
    for bar in bars:
        start = stretches.pop()[0] if stretches and stretches[-1][1] == bar.start else bar.start
        stretches.append((start, bar.end))
    return stretches


_MINUTE, _HOUR = 60.0, 3600.0
_STEPS = (
    *(digit * 10.0**power for power in range(-6, 1) for digit in (1, 2, 5)),
    *(10.0, 15.0, 30.0),
    *(minutes * _MINUTE for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * _HOUR for hours in (1, 2, 4, 6, 12, 24)),
)


def tick(seconds: float, step: float) -> str:
    """The label of a tick. The step chooses the unit, so that all ticks of an axis have the same."""
    if seconds == 0:
        return "0"
    if step <= 0.1:
        return f"{seconds * 1000:.6g} ms"
    if step < 60:
        return f"{seconds:.6g} s"
    return f"{seconds / 60:.6g} min" if step < 3600 else f"{seconds / 3600:.6g} h"


def tick_step(span: float, most: int) -> float:
    """The smallest round step that divides the span into at most `most` parts."""
    for step in _STEPS:
        if span <= step * most:
            return step
    return ceil(span / most / _STEPS[-1]) * _STEPS[-1]


MOST_NAMES = 6
SHORT_NAME = 6


class Bar(Record):
    """One bar. The first of `texts` that fits is written on it; `task` is the task it is about, if one."""

    lane: int
    start: float
    end: float
    look: str
    texts: tuple[str, ...]
    tooltip: tuple[str, ...]
    task: str = ""


class Band(Record):
    """A named group of lanes. `kind` is `cycles`, `holds` or `device`."""

    name: str
    kind: str
    lanes: int
    bars: tuple[Bar, ...]


def bands(data: Report) -> list[Band]:
    """The bands of a plan, top to bottom; those without bars are left out."""
    all_bands = [_cycles_band(data), _holds_band(data), *_device_bands(data)]
    return [band for band in all_bands if band.bars]


def _cycles_band(data: Report) -> Band:
    """Cycles that overlap in time get lanes of their own."""
    free_from: list[float] = []
    bars = []
    for cycle in sorted(data.cycles, key=lambda cycle: (cycle.opened, cycle.id)):
        lane = next((lane for lane, end in enumerate(free_from) if end <= cycle.opened), len(free_from))
        free_from[lane : lane + 1] = [cycle.closed]
        bars.append(_cycle_bar(data, cycle, lane))
    return Band("Edit cycles", "cycles", len(free_from), tuple(bars))


def _cycle_bar(data: Report, cycle: CycleBar, lane: int) -> Bar:
    edits = plural(cycle.edits, "edit") if cycle.edits else "no edits"
    return Bar(
        lane=lane,
        start=cycle.opened,
        end=cycle.closed,
        look=f"cycle is-{cycle.outcome}",
        texts=(f"#{cycle.id} {edits}", f"#{cycle.id}"),
        tooltip=(
            f"Edit cycle {cycle.id}: {cycle.outcome}, {edits}",
            _stretch(data, cycle.opened, cycle.closed),
            *([f"opened by {_names(cycle.triggers)}"] if cycle.triggers else []),
            *([cycle.cost] if cycle.cost else []),
        ),
    )


def _holds_band(data: Report) -> Band:
    """One bar for each stretch in which the set of held tasks stays the same."""
    bars = []
    for start, end, held in _held(data.holds):
        cycles = sorted({hold.cycle for hold in held if hold.cycle is not None})
        noun = "cycle" if len(cycles) == 1 else "cycles"
        by = f" by {noun} {', '.join(map(str, cycles))}" if cycles else ""
        bars.append(
            Bar(
                lane=0,
                start=start,
                end=end,
                look="hold",
                texts=(),
                tooltip=(
                    f"{plural(len(held), 'task')} held{by}",
                    _stretch(data, start, end),
                    _names([hold.task for hold in held]),
                ),
            )
        )
    return Band("Held tasks", "holds", 1, tuple(bars))


def _held(holds: Sequence[Hold]) -> Iterator[tuple[float, float, list[Hold]]]:
    beginning: defaultdict[float, list[int]] = defaultdict(list)
    ending: defaultdict[float, list[int]] = defaultdict(list)
    for index, hold in enumerate(holds):
        if hold.start < hold.end:
            beginning[hold.start].append(index)
            ending[hold.end].append(index)
    held: dict[int, Hold] = {}
    for start, end in pairwise(sorted({*beginning, *ending})):
        for index in ending[start]:
            del held[index]
        held.update((index, holds[index]) for index in beginning[start])
        if held:
            yield start, end, list(held.values())


def _device_bands(data: Report) -> list[Band]:
    """Devices in the order of their first execution; a lane for each slot that was used."""
    by_device: dict[str, list[ExecutionBar]] = {}
    for execution in data.executions:
        by_device.setdefault(execution.device, []).append(execution)
    device_bands = []
    for device, executions in by_device.items():
        slots = sorted({execution.slot for execution in executions})
        lane_of = {slot: lane for lane, slot in enumerate(slots)}
        bars = tuple(_execution_bar(data, execution, lane_of[execution.slot]) for execution in executions)
        device_bands.append(Band(device, "device", len(lane_of), bars))
    return device_bands


def _execution_bar(data: Report, execution: ExecutionBar, lane: int) -> Bar:
    provisional = execution.provisional
    return Bar(
        lane=lane,
        start=execution.start,
        end=execution.end,
        look=f"execution is-{execution.outcome}{' provisional' if provisional else ''}",
        texts=(execution.task, shorten(execution.task, SHORT_NAME)),
        tooltip=(
            execution.task,
            f"{execution.outcome}{', started provisionally' if provisional else ''}",
            _stretch(data, execution.start, execution.end),
            f"{execution.device}, slot {execution.slot}",
        ),
        task=execution.task,
    )


def _stretch(data: Report, start: float, end: float) -> str:
    since = data.started_at
    return f"{format_duration(start - since)} to {format_duration(end - since)}, took {format_duration(end - start)}"


def _names(names: Sequence[str]) -> str:
    more = [f"and {len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
    return ", ".join([*islice(names, MOST_NAMES), *more])
