"""Frozen dataclasses that take no time to define, for tables of requests and documents that every command imports.

``dataclasses.dataclass`` compiles six functions for each class, a millisecond in all. This one has the same functions
once for all classes, which read the fields of their class. Subclasses of ``Request`` and of ``documents.Document`` are
such classes: for type checkers, ``dataclasses.fields``, ``replace``, ``asdict`` and pydantic they are dataclasses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, dataclass_transform


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Request:
    """The base of requests: a subclass is a frozen dataclass of its fields."""

    def __init_subclass__(cls, *, kw_only: bool = False) -> None:
        super().__init_subclass__()
        define(cls, kw_only=kw_only)


def define(cls: type, *, kw_only: bool = False) -> None:
    """Make a class a frozen dataclass, in ``__init_subclass__`` of a base with ``dataclass_transform``."""
    cls.__doc__ = cls.__doc__ or f"{cls.__name__}(…)"  # or dataclasses would write the signature there
    _add_fields(cls, kw_only)
    for name, function in _FUNCTIONS.items():
        setattr(cls, name, function)


def _add_fields(cls: Any, kw_only: bool) -> None:
    """Give a class its fields, and no more. Dataclasses refuses to mix frozen and other classes, so all are others
    meanwhile; afterwards a frozen class of the standard library may inherit from this one."""
    bases = [base.__dataclass_params__ for base in cls.__mro__[1:] if "__dataclass_params__" in vars(base)]
    for parameters in bases:
        parameters.frozen = False
    try:
        dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
    finally:
        for parameters in bases:
            parameters.frozen = True
    cls.__dataclass_params__.frozen = True


class _Plan(NamedTuple):
    """How instances of a class are made."""

    template: dict[str, Any]
    """All fields in order, with their defaults."""
    positional: tuple[str, ...]
    factories: dict[str, Callable[[], Any]]


def _plan_of(cls: Any) -> _Plan:
    plan: _Plan | None = cls.__dict__.get("_quick_plan")
    if plan is None:
        fields = dataclasses.fields(cls)
        factories = {
            field.name: field.default_factory for field in fields if field.default_factory is not dataclasses.MISSING
        }
        positional = tuple(field.name for field in fields if not field.kw_only)
        plan = _Plan({field.name: field.default for field in fields}, positional, factories)
        cls._quick_plan = plan
    return plan


def _init(self: Any, *values: Any, **named: Any) -> None:
    cls = type(self)
    plan = _plan_of(cls)
    if values:
        placed = dict(zip(plan.positional, values, strict=False))
        if len(placed) < len(values):
            raise TypeError(f"{cls.__name__}() takes {len(plan.positional)} positional arguments, not {len(values)}")
        if twice := placed.keys() & named.keys():
            raise TypeError(f"{cls.__name__}() got several values for {', '.join(sorted(twice))}")
        named.update(placed)
    state = {**plan.template, **named}
    if len(state) > len(plan.template):
        unknown = ", ".join(name for name in state if name not in plan.template)
        raise TypeError(f"{cls.__name__}() has no fields {unknown}")
    for name, make in plan.factories.items():
        if state[name] is dataclasses.MISSING:
            state[name] = make()
    for name, value in state.items():
        if value is dataclasses.MISSING:
            raise TypeError(f"{cls.__name__}() needs {name}")
    self.__dict__.update(state)


def _values(self: Any) -> tuple[Any, ...]:
    return tuple(map(self.__dict__.get, _plan_of(type(self)).template))


def _equal(self: Any, other: Any) -> Any:
    return _values(self) == _values(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _repr(self: Any) -> str:
    shown = (f"{field.name}={self.__dict__.get(field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _frozen(self: Any, name: str, value: Any = None) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot change field {name!r}")


class _Signature:
    """The signature of a class, for ``help`` and ``inspect``: made when it is asked for."""

    def __get__(self, instance: Any, owner: Any) -> Any:
        from inspect import Parameter, Signature

        plan, hints = _plan_of(owner), {field.name: field.type for field in dataclasses.fields(owner)}
        positional = dict.fromkeys(plan.positional, Parameter.POSITIONAL_OR_KEYWORD)
        kinds = {**positional, **{name: Parameter.KEYWORD_ONLY for name in plan.template if name not in positional}}
        parameters = []
        for name, kind in kinds.items():
            default = plan.factories.get(name, plan.template[name])
            shown = Parameter.empty if default is dataclasses.MISSING else default
            parameters.append(Parameter(name, kind, default=shown, annotation=hints[name]))
        return Signature(parameters, return_annotation=None)


_FUNCTIONS: dict[str, Any] = {
    "__init__": _init,
    "__eq__": _equal,
    "__hash__": _hash,
    "__repr__": _repr,
    "__setattr__": _frozen,
    "__delattr__": _frozen,
    "__signature__": _Signature(),
}
