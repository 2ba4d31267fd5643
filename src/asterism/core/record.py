"""Records: classes with typed fields, and their JSON form. The only module that imports the codec library.

A ``Record`` is a fact: it never changes, and it has the same fields in memory, in a store, on the wire and in
``--json``. The types of its fields are its validation: ``decode`` checks them, the constructor trusts its caller. A
``Struct`` is the same for what may change.

>>> class Point(Record, forbid_unknown_fields=True):
...     x: float
...     label: str = ""
>>> encode(Point(2.0, "here"))
{'x': 2.0, 'label': 'here'}
>>> decode(Point, {"x": 2.0})
Point(x=2.0, label='')
>>> decode(Point, {"x": "far"})
Traceback (most recent call last):
    ...
asterism.core.record.InvalidRecord: x: expected `float`, got `str`
>>> for mistake in mistakes(Point, {"x": "far", "lable": "here"}):
...     print(mistake)
x: expected `float`, got `str`
lable: unknown field; did you mean 'label'?

A class with ``omit_defaults=True`` leaves fields out of its JSON form that have their default; one with
``forbid_unknown_fields=True`` refuses objects with other fields, and ``kw_only=True`` takes its fields by name.
"""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType, NoneType, UnionType
from typing import Any, NamedTuple, Self, TypeVar, dataclass_transform

import msgspec
from msgspec import UNSET, Meta, field
from msgspec.structs import fields as fields_of
from msgspec.structs import force_setattr as set_field
from msgspec.structs import replace

__all__ = [
    "UNSET",
    "InvalidRecord",
    "Meta",
    "Mistake",
    "Record",
    "Struct",
    "decode",
    "encode",
    "field",
    "fields_of",
    "mistakes",
    "replace",
    "schemas",
    "set_field",
]

Kind = TypeVar("Kind")


class InvalidRecord(ValueError):
    """A value that is not what a field asks for. The message says where."""


@dataclass_transform(field_specifiers=(field,))
class Struct(msgspec.Struct):
    """The base of a class with typed fields, which may change."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Record(msgspec.Struct, frozen=True):
    """The base of a class with typed fields, which never change."""

    def to_json(self) -> dict[str, Any]:
        """Its JSON form."""
        data: dict[str, Any] = encode(self)
        return data

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The record with this JSON form. Raises InvalidRecord, and what ``__post_init__`` raises."""
        return decode(cls, data)


def encode(value: Any) -> Any:
    """The JSON form of a record, or of a list or mapping of records. Sets are sorted."""
    return msgspec.to_builtins(value, order="deterministic", enc_hook=_plain)


def decode(kind: type[Kind], value: Any) -> Kind:
    """The value of a type that a JSON value describes: ``decode(Page[Run], {"items": […]})``. Raises InvalidRecord."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        mistake = _mistake(str(error))
        raise InvalidRecord(str(mistake)) from None


def schemas(kinds: Sequence[Any], ref: str) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """The JSON schemas of types, and those of the classes that they refer to, by name. ``ref`` is the form of the
    references: ``#/components/schemas/{name}``."""
    return msgspec.json.schema_components(kinds, ref_template=ref)


def _plain(value: Any) -> Any:
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise NotImplementedError(f"a {type(value).__name__} has no JSON form")


# -- mistakes ----------------------------------------------------------------------------------------------------------

Place = tuple[str | int, ...]
"""Where a value is in another: names of fields and places in lists."""


class Mistake(NamedTuple):
    """What is wrong with a value, and where."""

    place: Place
    text: str

    def __str__(self) -> str:
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.place).lstrip(".")
        return f"{where}: {self.text}" if where else self.text


def mistakes(kind: Any, value: Any, place: Place = ()) -> list[Mistake]:
    """All that is wrong with a value that should be of a type, where ``decode`` stops at the first."""
    try:
        msgspec.convert(value, kind)
        return []
    except msgspec.ValidationError as error:
        first = str(error)
    found = [mistake for name, part, item in _parts(kind, value) for mistake in mistakes(part, item, (*place, name))]
    found += [Mistake((*place, *inner), text) for inner, text in _own_mistakes(kind, value)]
    return found or [Mistake(place, _mistake(first).text)]


def _parts(kind: Any, value: Any) -> Iterator[tuple[str | int, Any, Any]]:
    """The parts of a value of some type: their names, types and values."""
    kind = _sole(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if _is_struct(kind) and isinstance(value, Mapping):
        yield from ((f.encode_name, f.type, value[f.encode_name]) for f in fields_of(kind) if f.encode_name in value)
    elif origin in (list, tuple, set, frozenset) and isinstance(value, list | tuple):
        yield from ((index, arguments[0], item) for index, item in enumerate(value))
    elif origin in (dict, Mapping) and isinstance(value, Mapping):
        yield from ((str(name), arguments[1], item) for name, item in value.items())


def _own_mistakes(kind: Any, value: Any) -> Iterator[tuple[Place, str]]:
    """Fields that are missing, and those that nobody knows."""
    kind = _sole(kind)
    if not _is_struct(kind) or not isinstance(value, Mapping):
        return
    known = {field.encode_name: field for field in fields_of(kind)}
    if kind.__struct_config__.forbid_unknown_fields:
        for name in value:
            if name not in known and name != kind.__struct_config__.tag_field:
                close = difflib.get_close_matches(str(name), known, 1)
                yield (str(name),), f"unknown field; did you mean {close[0]!r}?" if close else "unknown field"
    yield from (((name,), "missing") for name, field in known.items() if field.required and name not in value)


def _sole(kind: Any) -> Any:
    """The one type that a value which is not None may have."""
    if typing.get_origin(kind) is typing.Annotated:
        return _sole(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (typing.Union, UnionType):
        kinds = [part for part in typing.get_args(kind) if part is not NoneType]
        return _sole(kinds[0]) if len(kinds) == 1 else kind
    return kind


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


_WHERE = re.compile(r"(?P<text>.*?)(?: - at `(?P<path>.*)`)?", re.DOTALL)
_PART = re.compile(r"\[(\d+|\.\.\.)\]|\.?([^.\[\]$]+)")


def _mistake(error: str) -> Mistake:
    """The error of the library, which names a place as in ``$.tasks[3].id``."""
    match = _WHERE.fullmatch(error)
    assert match is not None
    text = match["text"]
    place = [int(index) if index.isdigit() else name or "*" for index, name in _PART.findall(match["path"] or "")]
    return Mistake(tuple(place), text[:1].lower() + text[1:])
