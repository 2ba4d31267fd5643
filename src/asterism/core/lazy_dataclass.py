"""Dataclasses that take no time to define: what ``dataclasses`` adds to a class is made when it is first looked up.

``dataclasses.dataclass`` reads the annotations of a class and compiles up to ten functions, a millisecond in all; a
short command imports some 250 such classes and uses a few. This ``dataclass`` puts a descriptor in place of each
attribute. When the attribute is first looked up, the descriptor has ``dataclasses`` make it and is replaced by it: from
then on the class is that of the standard library, and as fast. For type checkers it always is.

>>> @dataclass(frozen=True)
... class Lease:
...     owner: str
>>> Lease("a") == Lease("a")
True
>>> [name for name in vars(Lease) if isinstance(vars(Lease)[name], Deferred)]
['__dataclass_params__', '__match_args__', '__repr__', '__hash__']
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

ORDER = ("__lt__", "__le__", "__gt__", "__ge__")


class Deferred:
    """An attribute of a dataclass that is made when it is first looked up."""

    __slots__ = ("definition", "name")

    def __init__(self, definition: Definition, name: str) -> None:
        self.definition, self.name = definition, name

    def __get__(self, instance: object, cls: type) -> Any:
        value = self.definition.made(self.name)
        setattr(self.definition.owner, self.name, value)  # threads that look it up at once set equal values
        return value.__get__(instance, cls) if hasattr(value, "__get__") else value


class Definition:
    """A class, the defaults that stood in its body, and the parameters of its decorator. What it makes comes from a
    twin, another class with the same fields: while ``dataclasses`` works on a class, other threads cannot use it."""

    __slots__ = ("defaults", "frozen", "kw_only", "owner", "parameters", "slots")

    def __init__(
        self, owner: Any, defaults: Mapping[str, Any], kw_only: bool, slots: bool, frozen: bool, **parameters: bool
    ) -> None:
        self.owner, self.defaults, self.kw_only, self.slots, self.frozen = owner, defaults, kw_only, slots, frozen
        self.parameters = {"init": True, "frozen": frozen, "match_args": True, "kw_only": kw_only, "slots": slots}
        self.parameters |= parameters

    def made(self, name: str) -> Any:
        """What ``dataclasses`` would give the class under this name."""
        if name in ("__dataclass_fields__", "__dataclass_params__"):
            return vars(self.collected())[name]
        body = {"__post_init__": None} if hasattr(self.owner, "__post_init__") else {}
        frozen = self.frozen and name == "__init__"  # of each frozen one, dataclasses compiles two more functions
        twin = self._twin(self.owner.__dataclass_fields__, body, frozen)
        made = dataclasses.dataclass(
            init=name == "__init__",
            repr=name == "__repr__",
            eq=name in ("__eq__", *ORDER),
            order=name in ORDER,
            unsafe_hash=name == "__hash__",
            match_args=name == "__match_args__",
            frozen=frozen,
            slots=self.slots and name == "__init__",  # it then sets the defaults of fields that are no parameters
        )(twin)
        return vars(made)[name]

    def collected(self) -> Any:
        """A twin with the fields of this class and of its bases, and no functions."""
        inherited: dict[str, Any] = {}
        for base in self.owner.__mro__[:0:-1]:
            inherited.update(getattr(base, "__dataclass_fields__", {}))
        body = {"__annotations__": inspect.get_annotations(self.owner), **self.defaults}
        twin = self._twin(inherited, body, frozen=False)
        dataclasses.dataclass(init=False, repr=False, eq=False, match_args=False, kw_only=self.kw_only)(twin)
        parameters = twin.__dataclass_params__
        for name in parameters.__slots__:  # Python 3.11 keeps fewer of them than later versions
            setattr(parameters, name, self.parameters.get(name, False))
        return twin

    def _twin(self, inherited: Mapping[str, Any], body: Mapping[str, Any], frozen: bool) -> Any:
        owner = self.owner
        base = type("Fields", (), {"__dataclass_fields__": inherited, "__dataclass_params__": _Base(frozen)})
        names = {"__module__": owner.__module__, "__qualname__": owner.__qualname__, "__doc__": owner.__doc__}
        return type(owner.__name__, (base,), {**names, **body})


class _Base(NamedTuple):
    """What ``dataclasses`` wants to know of a base."""

    frozen: bool


def _dataclass(
    cls: Any = None,
    /,
    *,
    repr: bool = True,
    eq: bool = True,
    order: bool = False,
    frozen: bool = False,
    kw_only: bool = False,
    slots: bool = False,
) -> Any:
    """``dataclasses.dataclass``, with the parameters that the package uses."""
    if cls is None:
        return partial(_dataclass, repr=repr, eq=eq, order=order, frozen=frozen, kw_only=kw_only, slots=slots)
    cls.__doc__ = cls.__doc__ or f"{cls.__name__}(…)"  # or dataclasses would write the signature there
    definition = Definition(cls, _taken_defaults(cls), kw_only, slots, frozen=frozen, repr=repr, eq=eq, order=order)
    if slots:
        cls = definition.owner = _with_slots(cls, definition.collected())
    names = ["__dataclass_fields__", "__dataclass_params__", "__match_args__", "__init__"]
    names += [*["__repr__"] * repr, *["__eq__"] * eq, *["__hash__"] * (eq and frozen), *ORDER * order]
    attributes: dict[str, Any] = {name: Deferred(definition, name) for name in names}
    if eq and not frozen:
        attributes["__hash__"] = None
    if frozen:
        attributes.update(__setattr__=_set, __delattr__=_delete)
    if frozen and slots:
        attributes.update(__getstate__=_state, __setstate__=_set_state)
    own = vars(cls)
    for name, attribute in attributes.items():
        # Python gives a class with an __eq__ and no __hash__ the hash None
        if name not in own or (name == "__hash__" and own[name] is None and "__eq__" in own):
            setattr(cls, name, attribute)
    return cls


def _taken_defaults(cls: Any) -> dict[str, Any]:
    """The defaults of fields. In the class, those that ``field`` gives are replaced by the values."""
    defaults = {name: vars(cls)[name] for name in inspect.get_annotations(cls) if name in vars(cls)}
    for name, default in defaults.items():
        if isinstance(default, dataclasses.Field):
            if default.default is dataclasses.MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, default.default)
    return defaults


def _with_slots(cls: Any, twin: Any) -> Any:
    """The class again, with slots for its fields."""
    inherited = {slot for base in cls.__mro__[1:-1] for slot in vars(base).get("__slots__", ())}
    fields = {field.name: None for field in dataclasses.fields(twin)}
    body = {name: value for name, value in vars(cls).items() if name not in (*fields, "__dict__", "__weakref__")}
    body["__slots__"] = tuple(name for name in fields if name not in inherited)
    body["__qualname__"] = cls.__qualname__
    body["__dataclass_fields__"], body["__dataclass_params__"] = twin.__dataclass_fields__, twin.__dataclass_params__
    return type(cls)(cls.__name__, cls.__bases__, body)


def _check_unfrozen(instance: object, name: str, action: str) -> None:
    """Raises FrozenInstanceError; a subclass that is no dataclass may have attributes of its own."""
    cls: Any = type(instance)
    if "__dataclass_params__" in vars(cls) or name in cls.__dataclass_fields__:
        raise dataclasses.FrozenInstanceError(f"cannot {action} field {name!r}")


def _set(self: object, name: str, value: object) -> None:
    _check_unfrozen(self, name, "assign to")
    object.__setattr__(self, name, value)


def _delete(self: object, name: str) -> None:
    _check_unfrozen(self, name, "delete")
    object.__delattr__(self, name)


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _dataclass
