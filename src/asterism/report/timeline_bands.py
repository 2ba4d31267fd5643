"""The bands of the timeline: bars for the edit cycles, for the holds, and for each device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

from asterism.base.durations import format_duration
from asterism.base.text import plural, shorten
from asterism.report.report_data import CycleBar, ExecutionBar, Hold, Report

MOST_NAMES = 6
SHORT_NAME = 6


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar. The first of `texts` that fits is written on it; `task` is the task it is about, if one."""

    lane: int
    start: float
    end: float
    look: str
    texts: tuple[str, ...]
    tooltip: tuple[str, ...]
    task: str = ""


@dataclass(frozen=True, slots=True)
class Band:
    """A named group of lanes. `kind` is `cycles`, `holds` or `device`."""

    name: str
    kind: str
    lanes: int
    bars: tuple[Bar, ...]


def bands(data: Report) -> list[Band]:
    """The bands of a run, top to bottom; those without bars are left out."""
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
    for number, hold in enumerate(holds):
        if hold.start < hold.end:
            beginning[hold.start].append(number)
            ending[hold.end].append(number)
    held: dict[int, Hold] = {}
    for start, end in pairwise(sorted({*beginning, *ending})):
        for number in ending[start]:
            del held[number]
        held.update((number, holds[number]) for number in beginning[start])
        if held:
            yield start, end, list(held.values())


def _device_bands(data: Report) -> list[Band]:
    """Devices in the order of their first execution; a lane for each slot that was used."""
    by_device: dict[str, list[ExecutionBar]] = {}
    for execution in data.executions:
        by_device.setdefault(execution.device, []).append(execution)
    found = []
    for device, executions in by_device.items():
        slots = sorted({execution.slot for execution in executions})
        lane_of = {slot: lane for lane, slot in enumerate(slots)}
        bars = tuple(_execution_bar(data, execution, lane_of[execution.slot]) for execution in executions)
        found.append(Band(device, "device", len(lane_of), bars))
    return found


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
