"""The layout of the page: nothing overlaps, everything flows one way, and an edit moves only what it has to."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from asterism import Constellation
from tests.long_tests import rest_long
from tests.page.browser_scenes import chromium, needs_chromium, opened
from tests.page.plan_server import PlanScene, served

pytestmark = needs_chromium

BEND_ROOM, MOST_BENDS = 0.2, 10_000

LAY_OUT = """async (shapes) => {
    const { layoutOf } = await import("/page/layout.js");
    const pairOf = ([key, chain]) => [key.split("\\u0000"), chain];
    const told = ({ places, bends }) => ({ places: Object.fromEntries(places), bends: [...bends].map(pairOf) });
    let before = null;
    return JSON.stringify(JSON.parse(shapes).map(([ids, pairs]) => {
        const dependencies = pairs.map(([source, target]) => ({ source, target }));
        const view = { tasks: ids.map((id) => ({ id })), dependencies };
        const fresh = layoutOf(view);
        before = layoutOf(view, before);
        return { ...told(before), fresh: told(fresh) };
    }));
}"""

Shape = tuple[list[str], list[tuple[str, str]]]


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    with chromium() as browser, served(PlanScene(Constellation("any"))) as url, opened(browser, url) as page:
        yield page


def layouts(page: Any, *history: Shape) -> list[Any]:
    """The layout of each shape near the one before it, beside one from nothing."""
    return list(json.loads(page.evaluate(LAY_OUT, json.dumps(history))))


def random_shape(chance: random.Random) -> Shape:
    """A graph over some of fourteen tasks; dependencies lead from lower to higher numbers."""
    numbers = sorted(chance.sample(range(14), chance.randrange(1, 15)))
    pairs = [(f"t{source}", f"t{target}") for target in numbers for source in numbers if source < target]
    return [f"t{number}" for number in numbers], chance.sample(pairs, chance.randrange(min(len(pairs), 20) + 1))


def check(layout: Any, shape: Shape) -> None:
    """Every task has a place, every dependency leads to a later layer, and nothing overlaps."""
    tasks, dependencies = shape
    places, bends = layout["places"], {tuple(pair): chain for pair, chain in layout["bends"]}
    assert sorted(places) == sorted(tasks)
    standing = defaultdict(list)
    for layer, row in places.values():
        standing[layer].append((row, 0.5))
    for (source, target), chain in bends.items():
        layers = [places[source][0], *(layer for layer, _ in chain), places[target][0]]
        assert layers == list(range(layers[0], layers[-1] + 1))
        for layer, row in chain:
            standing[layer].append((row, BEND_ROOM))
    for things in standing.values():
        things.sort()
        for (row, room), (next_row, next_room) in pairwise(things):
            assert next_row - row >= room + next_room - 1e-6
    for source, target in dependencies:
        passed = places[target][0] - places[source][0] - 1
        assert passed >= 0
        assert passed == len(bends.get((source, target), ()))


@pytest.mark.parametrize("seed", rest_long(range(24), 4))
def test_nothing_overlaps_and_only_tasks_whose_layer_changes_move(page: Any, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(25):
        shapes = [random_shape(chance) for _ in range(4)]
        shapes.append(shapes[-1])
        found = layouts(page, *shapes)
        assert found[-1]["places"] == found[-2]["places"], "a graph that has not changed stands still"
        for (before, layout), shape in zip(pairwise([None, *found]), shapes, strict=True):
            check(layout, shape)
            check(layout["fresh"], shape)
            if before is None or layout["places"] == layout["fresh"]["places"]:
                continue
            for task in layout["places"].keys() & before["places"].keys():
                (old, row), place = before["places"][task], layout["places"][task]
                assert place == [old, row] or old < place[0], (seed, task)


def test_an_inserted_task_moves_what_follows_it_by_one_layer_in_its_row(page: Any) -> None:
    chain, other = ([f"{name}{number}" for number in range(6)] for name in "tu")
    pairs = [*pairwise(chain), *pairwise(other)]
    edited = [pair for pair in pairs if pair != ("t2", "t3")] + [("t2", "new"), ("new", "t3")]
    plain, more = ([*chain, *other], pairs), ([*chain, *other, "new"], edited)
    before, after, undone, again = (layout["places"] for layout in layouts(page, plain, more, plain, more))
    assert {task for task in before if after[task] != before[task]} == {"t3", "t4", "t5"}
    assert all(after[task][1] == before[task][1] for task in chain)
    assert after["new"][1] == before["t2"][1]
    assert {task: after[task] for task in undone} == undone, "there is room for the next task now"
    assert again == after


def test_new_tasks_of_one_parent_stand_around_it(page: Any) -> None:
    children = [f"c{number}" for number in range(4)]
    more = (["a", "b", *children], [("a", "b"), *(("a", child) for child in children)])
    places = layouts(page, (["a", "b"], [("a", "b")]), more)[1]["places"]
    rows = sorted(places[task][1] - places["a"][1] for task in ("b", *children))
    assert rows == pytest.approx([-2, -1, 0, 1, 2])


def test_a_layout_with_too_many_empty_layers_is_made_anew(page: Any) -> None:
    tasks = [f"t{number}" for number in range(40)]
    layout = layouts(page, (tasks, list(pairwise(tasks))), (tasks[-2:], [("t38", "t39")]))[1]
    assert layout["places"] == layout["fresh"]["places"]


def test_tasks_without_dependencies_form_a_grid(page: Any) -> None:
    tasks = [f"t{number}" for number in range(100)]
    [layout] = layouts(page, (tasks, []))
    assert {tuple(place) for place in layout["places"].values()} == {(x, y + 0.5) for x in range(10) for y in range(10)}
    grown = layouts(page, *((tasks[:count], []) for count in range(1, 26)))[-1]["places"].values()
    assert max(layer for layer, _ in grown) < 7
    assert max(row for _, row in grown) - min(row for _, row in grown) <= 9


def test_a_tree_has_no_crossings_a_chain_is_straight_and_components_do_not_mix(page: Any) -> None:
    tree = [("r", "a"), ("r", "b"), ("r", "c"), ("a", "z"), ("b", "x"), ("b", "y"), ("c", "w")]
    [layout] = layouts(page, (list("rabcwxyz"), tree))
    leaves = sorted("wxyz", key=lambda task: layout["places"][task][1])
    parents = sorted("abc", key=lambda task: layout["places"][task][1])
    above = {"z": "a", "x": "b", "y": "b", "w": "c"}
    assert sorted(leaves, key=lambda leaf: parents.index(above[leaf])) == leaves
    [chain] = layouts(page, (list("abcde"), list(pairwise("abcde"))))
    assert {row for _, row in chain["places"].values()} == {0.5}
    [parts] = layouts(page, (list("abcdef"), [("a", "b"), ("c", "d"), ("e", "f"), ("c", "f")]))
    rows = {task: row for task, (_, row) in parts["places"].items()}
    assert max(rows[task] for task in "ab") < min(rows[task] for task in "cdef")


def test_a_long_chain_is_no_danger_and_long_edges_cost_a_bounded_number_of_bends(page: Any) -> None:
    tasks = [f"t{number}" for number in range(10_000)]
    [layout] = layouts(page, (tasks, list(pairwise(tasks))))
    assert layout["places"]["t9999"][0] == 9_999
    short = tasks[:400]
    [layout] = layouts(page, (short, [*pairwise(short), *(("t0", task) for task in short[2:])]))
    assert sum(len(chain) for _, chain in layout["bends"]) <= MOST_BENDS
    assert ["t0", "t399"] not in [pair for pair, _ in layout["bends"]]


def test_many_edits_of_a_large_plan_move_only_what_is_pushed(page: Any) -> None:
    chance, tasks = random.Random(3), [f"t{number}" for number in range(300)]
    pairs = sorted({(tasks[number // 15 * 15 - 15 + chance.randrange(15)], tasks[number]) for number in range(15, 300)})
    shapes = [(tasks, pairs)]
    for turn in range(30):
        source, target = chance.choice(pairs)
        tasks, pairs = [*tasks, f"n{turn}"], [*pairs, (source, f"n{turn}")]
        if turn % 3 == 0:
            pairs = [pair for pair in pairs if pair != (source, target)] + [(f"n{turn}", target)]
        shapes.append((tasks, pairs))
    for (before, after), shape in zip(pairwise(layouts(page, *shapes)), shapes[1:], strict=True):
        check(after, shape)
        moved = [task for task, place in before["places"].items() if after["places"][task] != place]
        assert all(after["places"][task][0] > before["places"][task][0] for task in moved)


def test_a_cycle_is_refused(page: Any) -> None:
    with pytest.raises(Exception, match="form a cycle"):
        layouts(page, (["a", "b"], [("a", "b"), ("b", "a")]))
