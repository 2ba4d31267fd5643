"""Lazy dataclasses behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from threading import Barrier
from typing import Any, ClassVar

import pytest

from asterism.core import lazy_dataclass
from asterism.core.lazy_dataclass import Deferred

OPTIONS: tuple[dict[str, bool], ...] = (
    {},
    {"frozen": True},
    {"slots": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "kw_only": True, "order": True},
    {"slots": True, "eq": False, "repr": False},
    {"kw_only": True},
)


def claims(make: Any, options: dict[str, bool]) -> tuple[Any, Any]:
    """A base and its subclass, of one of the two decorators."""

    @make(**options)
    class Terms:
        reason: str = field(default="", compare=False)
        words: list[str] = field(default_factory=list, kw_only=True)

    @make(**options)
    class Claim(Terms):
        """A claim."""

        kind: ClassVar[str] = "claim"
        issue: int = 0
        note: str = field(default="n", repr=False)
        lease: float | None = None
        twice: int = field(default=0, init=False)
        state: str = field(default="open", init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "twice", 2 * self.issue)

    return Terms, Claim


CALLS: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    ((), {}),
    (("x", 1), {}),
    (("x", 1, "n", 2.0), {"words": ["y"]}),
    ((), {"issue": 1, "reason": "r"}),
    (("x", 1), {"issue": 2}),
    (("x", 1), {"other": 2}),
    (("x", 1, "n", 2.0, 5), {}),
)


def outcome(action: Callable[[], object]) -> object:
    """What a call returns, or the error that it raises."""
    try:
        return action()
    except (TypeError, AttributeError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options) or "plain")
@pytest.mark.parametrize(("values", "named"), CALLS)
def test_instances_are_those_of_the_standard_library(
    options: dict[str, bool], values: tuple[Any, ...], named: dict[str, Any]
) -> None:
    def facts(cls: Any) -> list[object]:
        made, same, other = cls(*values, **named), cls(*values, **named), cls(issue=9)
        shown = repr(made) if options.get("repr", True) else None
        compared = outcome(lambda: made < other), outcome(lambda: made >= other)
        changed = dataclasses.replace(made, issue=8)
        state = dataclasses.asdict(made), dataclasses.asdict(copy.copy(made)), dataclasses.asdict(changed)
        return [shown, made == same, made == other, compared, state, made.words is same.words, made != changed]

    lazy, standard = claims(lazy_dataclass.dataclass, options)[1], claims(dataclasses.dataclass, options)[1]
    assert outcome(lambda: facts(lazy)) == outcome(lambda: facts(standard))


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options) or "plain")
def test_a_class_is_that_of_the_standard_library(options: dict[str, bool]) -> None:
    def facts(base: Any, cls: Any) -> list[object]:
        fields = [(field.name, field.type, field.default, field.kw_only) for field in dataclasses.fields(cls)]
        hashed = outcome(lambda: hash(cls(words=())) == hash(cls(words=()))) if options.get("eq", True) else None
        slots = [vars(kind).get("__slots__") for kind in (base, cls)]
        attributes = {name for name in vars(cls) if not name.startswith("__")}
        parameters = repr(cls.__dataclass_params__), cls.__match_args__, cls.__doc__
        return [fields, hashed, slots, attributes, parameters, str(inspect.signature(cls)), cls.kind]

    assert facts(*claims(lazy_dataclass.dataclass, options)) == facts(*claims(dataclasses.dataclass, options))


def test_the_standard_library_and_this_one_can_inherit_from_each_other() -> None:
    @dataclasses.dataclass(frozen=True)
    class First:
        a: int

    @lazy_dataclass.dataclass(frozen=True)
    class Second(First):
        b: int = 2

    @dataclasses.dataclass(frozen=True)
    class Third(Second):
        c: int = 3

    assert dataclasses.asdict(Third(1)) == {"a": 1, "b": 2, "c": 3}
    assert Second(1) == Second(1, 2)


@lazy_dataclass.dataclass(frozen=True, slots=True)
class Place:
    x: int
    y: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class StandardPlace:
    x: int
    y: int = 0


def test_frozen_instances_refuse_changes_and_can_be_pickled() -> None:
    for place, name in ((Place(1), "x"), (Place(1), "other")):
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot assign to field '{name}'"):
            setattr(place, name, 2)
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot delete field '{name}'"):
            delattr(place, name)
    assert pickle.loads(pickle.dumps(Place(1, 2))) == Place(1, 2)


def test_a_subclass_that_is_no_dataclass_has_attributes_of_its_own() -> None:
    class Marked(Place):
        def __init__(self, x: int) -> None:
            super().__init__(x)
            self.mark = "m"

    marked = Marked(3)
    assert (marked.x, marked.mark) == (3, "m")
    with pytest.raises(dataclasses.FrozenInstanceError):
        marked.x = 4  # type: ignore[misc]
    del marked.mark
    assert not hasattr(marked, "mark")


def test_functions_of_the_class_itself_stay() -> None:
    @lazy_dataclass.dataclass(frozen=True)
    class Odd:
        a: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Odd)

        def __repr__(self) -> str:
            return "odd"

    @lazy_dataclass.dataclass
    class Hashed:
        a: int

        def __hash__(self) -> int:
            return 7

    assert (Odd(1), repr(Odd(1)), hash(Odd(1))) == (Odd(2), "odd", hash(Odd(1)))
    assert hash(Hashed(1)) == 7


def deferred(cls: type) -> set[str]:
    return {name for name, value in vars(cls).items() if isinstance(value, Deferred)}


def test_nothing_is_made_before_it_is_used_and_then_it_is_what_dataclasses_makes() -> None:
    base, cls = claims(lazy_dataclass.dataclass, {"frozen": True})
    made = {"__dataclass_fields__", "__dataclass_params__", "__match_args__"}
    assert deferred(cls) == deferred(base) == {*made, "__init__", "__repr__", "__eq__", "__hash__"}
    cls()
    assert deferred(cls) == {"__dataclass_params__", "__match_args__", "__repr__", "__eq__", "__hash__"}
    standard = claims(dataclasses.dataclass, {"frozen": True})[1]
    for name in ("__init__", "__repr__", "__eq__", "__hash__"):
        function, expected = inspect.unwrap(getattr(cls, name)), inspect.unwrap(getattr(standard, name))
        assert function.__code__.co_code == expected.__code__.co_code, name


def test_threads_can_use_a_class_for_the_first_time_at_once() -> None:
    threads = 4
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(20):
            cls, barrier = claims(lazy_dataclass.dataclass, {"frozen": True})[1], Barrier(threads)

            def use(cls: Any = cls, barrier: Barrier = barrier) -> object:
                barrier.wait(10)
                return dataclasses.asdict(cls("r", 1))

            expected = {"reason": "r", "words": [], "issue": 1, "note": "n", "lease": None, "twice": 2, "state": "open"}
            assert list(pool.map(lambda _, use=use: use(), range(threads))) == [expected] * threads  # type: ignore[misc]
