"""The layered layout: nothing overlaps, everything flows one way, and size and depth do no harm."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.report import DrawnEdge, DrawnTask, Picture
from asterism.report.layout import BEND_ROOM, MOST_BENDS, count_crossings, lay_out, spread, untangle
from asterism.report.picture import Graph


def picture_of(count: int, edges: list[tuple[int, int]]) -> Picture:
    return Picture(
        "plan",
        tuple(DrawnTask(f"t{task}", f"t{task}") for task in range(count)),
        tuple(DrawnEdge(f"t{source}", f"t{target}") for source, target in edges),
    )


@st.composite
def pictures(draw: st.DrawFn) -> Picture:
    count = draw(st.integers(0, 14))
    possible = [(source, target) for target in range(count) for source in range(target)]
    return picture_of(count, draw(st.lists(st.sampled_from(possible), unique=True)) if possible else [])


@given(pictures())
@settings(deadline=None)
def test_nothing_overlaps_and_every_line_runs_forwards(picture: Picture) -> None:
    graph = Graph.of(picture)
    layout = lay_out(graph)
    standing = defaultdict(list)
    for place in layout.places:
        standing[place.layer].append((place.row, 0.5))
    for bend in (bend for chain in layout.bends for bend in chain):
        standing[bend.layer].append((bend.row, BEND_ROOM))
    for layer, things in standing.items():
        assert 0 <= layer < layout.layers
        things.sort()
        for (row, room), (next_row, next_room) in pairwise(things):
            assert next_row - row >= room + next_room - 1e-6
    for (source, target), chain in zip(graph.edges, layout.bends, strict=True):
        layers = [layout.places[source].layer, *(bend.layer for bend in chain), layout.places[target].layer]
        assert layers == list(range(layers[0], layers[-1] + 1))
    assert all(0.5 - 1e-6 <= place.row <= layout.rows - 0.5 + 1e-6 for place in layout.places)


@given(pictures())
@settings(deadline=None)
def test_the_same_graph_is_always_laid_out_the_same(picture: Picture) -> None:
    assert lay_out(Graph.of(picture)) == lay_out(Graph.of(picture))


def test_an_empty_graph_has_no_layers() -> None:
    layout = lay_out(Graph.of(picture_of(0, [])))
    assert (layout.places, layout.layers, layout.rows) == ((), 0, 0.0)


def test_a_layer_is_the_length_of_the_longest_path() -> None:
    graph = Graph.of(picture_of(4, [(0, 1), (1, 2), (0, 2), (2, 3), (0, 3)]))
    assert graph.layers == (0, 1, 2, 3)


def test_a_tree_is_drawn_without_crossings() -> None:
    layers = [[0], [1, 2, 3], [4, 5, 6, 7]]
    below = {0: [1, 2, 3], 1: [7], 2: [5, 6], 3: [4], 4: [], 5: [], 6: [], 7: []}
    above: dict[int, list[int]] = {node: [] for node in below}
    for upper, lowers in below.items():
        for lower in lowers:
            above[lower].append(upper)
    assert count_crossings(layers, below) > 0
    assert count_crossings(untangle(layers, above, below), below) == 0


def test_a_chain_is_drawn_straight() -> None:
    layout = lay_out(Graph.of(picture_of(5, [(0, 1), (1, 2), (2, 3), (3, 4)])))
    assert {place.row for place in layout.places} == {0.5}


def test_components_do_not_mix() -> None:
    layout = lay_out(Graph.of(picture_of(6, [(0, 1), (2, 3), (4, 5), (2, 5)])))
    first = [layout.places[task].row for task in (0, 1)]
    second = [layout.places[task].row for task in (2, 3, 4, 5)]
    assert max(first) < min(second)


def test_tasks_without_lines_form_a_grid() -> None:
    layout = lay_out(Graph.of(picture_of(100, [])))
    assert layout.layers == 10
    assert layout.rows == 10.0


@pytest.mark.parametrize("size", [2_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_a_long_chain_is_no_danger(size: int) -> None:
    """It is longer than the stack of Python is deep."""
    layout = lay_out(Graph.of(picture_of(size, [(task, task + 1) for task in range(size - 1)])))
    assert layout.layers == size


@pytest.mark.long
def test_many_long_lines_cost_a_bounded_number_of_bends() -> None:
    chain = [(task, task + 1) for task in range(399)]
    layout = lay_out(Graph.of(picture_of(400, chain + [(0, task) for task in range(2, 400)])))
    assert sum(map(len, layout.bends)) <= MOST_BENDS
    assert layout.bends[-1] == ()


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (picture_of(3, [(0, 1), (1, 2), (2, 1)]), "cycle that these tasks are on or below: t1, t2"),
        (picture_of(1, [(0, 0)]), "cycle"),
        (picture_of(1, [(0, 7)]), "'t7', which is not in the picture"),
        (Picture("plan", (DrawnTask("a", "a"), DrawnTask("a", "b")), ()), "same id"),
    ],
)
def test_a_picture_that_is_not_a_graph_is_refused(picture: Picture, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Graph.of(picture)


@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(0.1, 9), st.floats(0, 3)), min_size=1))
@settings(deadline=None)
def test_spreading_keeps_order_and_distance(wanted: list[tuple[float, float, float]]) -> None:
    wishes, weights, gaps = zip(*wanted, strict=True)
    places = spread(wishes, weights, gaps)
    for (place, next_place), gap in zip(pairwise(places), gaps[1:], strict=True):
        assert next_place - place >= gap - 1e-6


def test_spreading_moves_only_what_is_too_close() -> None:
    assert spread([0.0, 5.0, 5.0, 20.0], [1.0] * 4, [2.0] * 4) == [0.0, 4.0, 6.0, 20.0]
