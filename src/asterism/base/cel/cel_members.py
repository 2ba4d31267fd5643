"""Fields, items and macros of CEL: each part of ``a.b[c].all(x, …)`` as a function of a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asterism.base.cel.cel_errors import TooCostly, Unevaluable
from asterism.base.cel.cel_values import (
    ABSENT,
    BOOL,
    INT,
    LIST,
    MAP,
    UINT,
    BuiltList,
    Evaluation,
    find,
    keys_of,
    kind_of,
    no_overload,
)

ERROR = 10
"""The cost of ignoring an error, in steps."""

Run = Callable[[Evaluation], Any]
Part = Callable[[Evaluation, Any], Any]


def step(run: Evaluation) -> None:
    run.left -= 1
    if run.left < 0:
        raise TooCostly


def truth(value: Any, where: str) -> bool:
    if value is True or value is False:
        return value
    if kind_of(value) != BOOL:
        raise no_overload(where, value)
    return bool(value)


def field(name: str) -> Part:
    def run(run: Evaluation, value: Any) -> Any:
        run.left -= 1
        if run.left < 0:
            raise TooCostly
        if type(value) is not dict and kind_of(value) != MAP:
            raise Unevaluable(f"a value of type {kind_of(value)} has no field '{name}'")
        found = value.get(name, ABSENT)
        if found is ABSENT:
            raise Unevaluable(f"there is no field '{name}'")
        return found

    return run


def item_at(key: Run) -> Part:
    def run(run: Evaluation, value: Any) -> Any:
        step(run)
        index, kind = key(run), kind_of(value)
        if kind == MAP:
            found = find(value, index)
            if found is ABSENT:
                raise Unevaluable("there is no such key in the map")
            return found
        if kind != LIST:
            raise no_overload("'[]'", value)
        if type(index) is float and index.is_integer():
            index = int(index)
        if kind_of(index) not in (INT, UINT):
            raise Unevaluable(f"a list is indexed by type int, not by type {kind_of(index)}")
        if not 0 <= index < len(value):
            raise Unevaluable("the index is not in the list")
        return value[index]

    return run


def _range(run: Evaluation, value: Any, macro: str) -> Any:
    """What a macro iterates over: the items of a list, or the keys of a map."""
    kind = kind_of(value)
    if kind == LIST:
        return value
    if kind != MAP:
        raise no_overload(macro, value)
    run.spend(len(value))
    return keys_of(value)


def _decided(decisive: bool, slot: int, macro: str, body: Run) -> Part:
    """``all`` and ``exists``: as ``&&`` and ``||`` over all items."""

    def run(run: Evaluation, value: Any) -> Any:
        failed: Unevaluable | None = None
        for item in _range(run, value, macro):
            step(run)
            run.variables[slot] = item
            try:
                if truth(body(run), macro) is decisive:
                    return decisive
            except Unevaluable as error:
                run.spend(ERROR)
                failed = error
        if failed is not None:
            raise failed
        return not decisive

    return run


def _exists_one(slot: int, macro: str, body: Run) -> Part:
    def run(run: Evaluation, value: Any) -> Any:
        found = 0
        for item in _range(run, value, macro):
            step(run)
            run.variables[slot] = item
            found += truth(body(run), macro)
        return found == 1

    return run


def _filter(slot: int, macro: str, body: Run) -> Part:
    def run(run: Evaluation, value: Any) -> Any:
        kept = BuiltList()
        for item in _range(run, value, macro):
            run.spend(2)
            run.variables[slot] = item
            if truth(body(run), macro):
                kept.append(item)
        return kept

    return run


def _map(slot: int, macro: str, *bodies: Run) -> Part:
    wanted, made = bodies if len(bodies) == 2 else (None, bodies[0])

    def run(run: Evaluation, value: Any) -> Any:
        items = BuiltList()
        for item in _range(run, value, macro):
            run.spend(2)
            run.variables[slot] = item
            if wanted is None or truth(wanted(run), macro):
                items.append(made(run))
        return items

    return run


MACROS: dict[str, Callable[..., Part]] = {
    "all": lambda *given: _decided(False, *given),
    "exists": lambda *given: _decided(True, *given),
    "exists_one": _exists_one,
    "existsOne": _exists_one,
    "filter": _filter,
    "map": _map,
}
