"""The incremental layout: an edit moves only the tasks whose layer changes, and nothing overlaps."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.report.layout import BEND_ROOM, LOOSEST, MOST_BENDS, SPARE_LAYERS, PlanLayout, fresh, updated

Shape = tuple[list[str], list[tuple[str, str]]]


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """A graph over some of fourteen tasks; dependencies lead from lower to higher numbers."""
    numbers = sorted(draw(st.sets(st.integers(0, 13))))
    pairs = [(f"t{source}", f"t{target}") for target in numbers for source in numbers if source < target]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return [f"t{number}" for number in numbers], chosen


def moved(before: PlanLayout, after: PlanLayout) -> set[str]:
    """The tasks of both layouts whose place differs."""
    return {task for task, place in after.places.items() if before.places.get(task, place) != place}


def check(layout: PlanLayout, shape: Shape) -> None:
    """Every task has a place, every dependency leads to a later layer, and nothing overlaps."""
    tasks, dependencies = shape
    assert list(layout.places) == tasks
    standing = defaultdict(list)
    for place in layout.places.values():
        standing[place.layer].append((place.row, 0.5))
    for pair, chain in layout.bends.items():
        layers = [layout.places[pair[0]].layer, *(bend.layer for bend in chain), layout.places[pair[1]].layer]
        assert layers == list(range(layers[0], layers[-1] + 1))
        for bend in chain:
            standing[bend.layer].append((bend.row, BEND_ROOM))
    for things in standing.values():
        things.sort()
        for (row, room), (next_row, next_room) in pairwise(things):
            assert next_row - row >= room + next_room - 1e-6
    for source, target in dependencies:
        passed = layout.places[target].layer - layout.places[source].layer - 1
        assert passed >= 0
        assert passed == len(layout.bends.get((source, target), ()))
    first, last = layout.rows
    assert all(first <= place.row - 0.5 and place.row + 0.5 <= last for place in layout.places.values())


@given(st.lists(shapes(), min_size=2, max_size=4))
def test_nothing_overlaps_and_only_tasks_whose_layer_changes_move(history: list[Shape]) -> None:
    layout = fresh(*history[0])
    check(layout, history[0])
    for shape in history[1:]:
        before, layout = layout, updated(layout, *shape)
        check(layout, shape)
        if layout == fresh(*shape):
            continue
        for task in layout.places.keys() & before.places.keys():
            if before.places[task].layer == layout.places[task].layer:
                assert before.places[task] == layout.places[task]
            else:
                assert before.places[task].layer < layout.places[task].layer


@given(st.lists(shapes(), min_size=1, max_size=3))
def test_the_same_history_gives_the_same_layout(history: list[Shape]) -> None:
    layouts = [fresh(*history[0]), fresh(*history[0])]
    for shape in history:
        layouts = [updated(layout, *shape) for layout in layouts]
        assert layouts[0] == layouts[1]


@given(shapes())
def test_a_graph_that_has_not_changed_stands_still(shape: Shape) -> None:
    layout = fresh(*shape)
    assert updated(layout, *shape) == layout


@given(shapes(), st.data())
def test_removing_moves_nothing(shape: Shape, data: st.DataObject) -> None:
    tasks, dependencies = shape
    gone = data.draw(st.sets(st.sampled_from(tasks), max_size=2)) if tasks else set()
    rest = [task for task in tasks if task not in gone]
    left = [pair for pair in dependencies if not gone & set(pair)]
    layout = fresh(*shape)
    after = updated(layout, rest, left)
    if after.layers > LOOSEST * fresh(rest, left).layers + SPARE_LAYERS:
        return
    assert moved(layout, after) == set() or after == fresh(rest, left)


def test_an_inserted_task_moves_what_follows_it_by_one_layer_in_its_row() -> None:
    chain = [f"t{number}" for number in range(6)]
    other = [f"u{number}" for number in range(6)]
    pairs = [*pairwise(chain), *pairwise(other)]
    before = fresh([*chain, *other], pairs)
    edited = [pair for pair in pairs if pair != ("t2", "t3")] + [("t2", "new"), ("new", "t3")]
    after = updated(before, [*chain, *other, "new"], edited)
    assert moved(before, after) == {"t3", "t4", "t5"}
    assert all(after.places[task].row == before.places[task].row for task in chain)
    assert after.places["new"].row == before.places["t2"].row
    undone = updated(after, [*chain, *other], pairs)
    assert moved(after, undone) == set()  # there is room for the next task now
    assert moved(undone, updated(undone, [*chain, *other, "new"], edited)) == set()


def test_new_tasks_of_one_parent_stand_around_it() -> None:
    before = fresh(["a", "b"], [("a", "b")])
    children = [f"c{number}" for number in range(4)]
    after = updated(before, ["a", "b", *children], [("a", "b"), *(("a", child) for child in children)])
    rows = sorted(after.places[task].row - after.places["a"].row for task in ("b", *children))
    assert rows == pytest.approx([-2, -1, 0, 1, 2])


def test_a_layout_with_too_many_empty_columns_is_made_anew() -> None:
    tasks = [f"t{number}" for number in range(40)]
    layout = fresh(tasks, list(pairwise(tasks)))
    assert updated(layout, tasks[-2:], [("t38", "t39")]) == fresh(tasks[-2:], [("t38", "t39")])


def test_tasks_without_dependencies_fill_a_grid() -> None:
    layout = fresh(["a"], [])
    tasks = ["a"]
    for number in range(24):
        tasks.append(f"t{number}")
        layout = updated(layout, tasks, [])
    assert layout.layers <= 7
    assert layout.rows[1] - layout.rows[0] <= 10


def test_a_cycle_is_refused() -> None:
    with pytest.raises(ValueError, match="cycle"):
        updated(fresh(["a", "b"], []), ["a", "b"], [("a", "b"), ("b", "a")])


def layered(count: int, width: int, seed: int = 1) -> Shape:
    chance = random.Random(seed)
    tasks = [f"t{number}" for number in range(count)]
    pairs = set()
    for number in range(width, count):
        above = (number // width - 1) * width
        pairs |= {(tasks[above + chance.randrange(width)], tasks[number]) for _ in range(2)}
    return tasks, sorted(pairs)


@pytest.mark.long
def test_many_edits_of_a_large_plan_move_only_what_is_pushed() -> None:
    chance = random.Random(3)
    tasks, pairs = layered(300, 15)
    layout = fresh(tasks, pairs)
    for turn in range(60):
        source, target = chance.choice(pairs)
        tasks, pairs = [*tasks, f"n{turn}"], [*pairs, (source, f"n{turn}")]
        if turn % 3 == 0:
            pairs = [pair for pair in pairs if pair != (source, target)] + [(f"n{turn}", target)]
        before, layout = layout, updated(layout, tasks, pairs)
        assert all(layout.places[task].layer > before.places[task].layer for task in moved(before, layout))
        if sum(map(len, layout.bends.values())) < MOST_BENDS // 2:
            check(layout, (tasks, pairs))
