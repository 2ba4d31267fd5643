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
asterism.core.record.InvalidRecord: x must be a number, not 'far'
>>> for mistake in mistakes(Point, {"x": "far", "lable": "here"}):
...     print(mistake.text)
x must be a number, not 'far'
unknown key 'lable'; did you mean 'label'?

A class with ``omit_defaults=True`` leaves fields out of its JSON form that have their default; one with
``forbid_unknown_fields=True`` refuses objects with other fields, and ``kw_only=True`` takes its fields by name.
"""

from __future__ import annotations

import dataclasses
import operator
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cache
from inspect import cleandoc
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Self, TypeVar, dataclass_transform

import msgspec
from msgspec import NODEFAULT, UNSET, Meta, field
from msgspec.structs import asdict, replace
from msgspec.structs import fields as fields_of
from msgspec.structs import force_setattr as set_field

from asterism.core.errors import describe_value, suggestion

__all__ = [
    "END",
    "MISSING",
    "UNKNOWN",
    "UNSET",
    "InvalidRecord",
    "KeywordOnly",
    "Meta",
    "Mistake",
    "Name",
    "Pause",
    "Record",
    "Seconds",
    "Struct",
    "asdict",
    "decode",
    "decode_json",
    "defaults_of",
    "encode",
    "encode_json",
    "expected",
    "field",
    "field_mistakes",
    "fields_of",
    "format_place",
    "mistakes",
    "one_of",
    "record_of",
    "replace",
    "repr_without",
    "schema",
    "schemas",
    "set_field",
]

Kind = TypeVar("Kind")


END = r"$(?!\n)"
"""The end of a text in a pattern: in Python, ``$`` alone is also before a line break at the end."""

Name = Annotated[str, Meta(min_length=1)]
"""A text that is not empty."""

Seconds = Annotated[float, Meta(gt=0, le=10**15)]
Pause = Annotated[float, Meta(ge=0, le=10**15)]
"""A number of seconds, and one that may be 0. Neither is infinite."""


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


def repr_without(record: msgspec.Struct, *names: str) -> str:
    """The ``repr`` of a record without its fields of these names, which are secret."""
    shown = ", ".join(f"{name}={value!r}" for name, value in asdict(record).items() if name not in names)
    return f"{type(record).__name__}({shown})"


class KeywordOnly(msgspec.StructMeta):
    """The metaclass of records whose subclasses, too, take their fields by name."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        return super().__new__(cls, name, bases, namespace, **{"kw_only": True, **options})


@cache
def record_of(kind: Any) -> type[msgspec.Struct]:
    """A class of records with the fields of a dataclass, which others have written. It refuses unknown fields."""
    hints, fields = typing.get_type_hints(kind, include_extras=True), list[tuple[str, Any, Any]]()
    for own in dataclasses.fields(kind):
        if own.default_factory is not dataclasses.MISSING:
            default = field(default_factory=own.default_factory)
        else:
            default = NODEFAULT if own.default is dataclasses.MISSING else own.default
        fields.append((own.name, hints[own.name], default))
    namespace = {"__doc__": kind.__doc__}
    return msgspec.defstruct(
        kind.__name__, fields, bases=(Record,), namespace=namespace, kw_only=True, forbid_unknown_fields=True
    )


def defaults_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The optional fields of a class, in their order, with their defaults."""
    names, defaults = kind.__struct_fields__, kind.__struct_defaults__
    optional = zip(names[len(names) - len(defaults) :], defaults, strict=True)
    return {
        name: default.factory() if type(default).__name__ == "Factory" else default
        for name, default in optional
        if default is not NODEFAULT
    }


def part_of(kind: type[Record], names: Sequence[str]) -> Any:
    """A class with some of the fields of another one, which leaves out those that have their default."""
    fields = [(f.name, f.type, field(default=f.default)) for f in fields_of(kind) if f.name in names and not f.required]
    needed: list[Any] = [(f.name, f.type) for f in fields_of(kind) if f.name in names and f.required]
    return msgspec.defstruct(f"{kind.__name__}Part", [*needed, *fields], frozen=True, omit_defaults=True)


def encode(value: Any) -> Any:
    """The JSON form of a record, or of a list or mapping of records. Bytes stay, which are no JSON."""
    return msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=_plain)


def decode(kind: type[Kind], value: Any, *, strict: bool = True) -> Kind:
    """The value of a type that a JSON value describes: ``decode(Page[Run], {"items": […]})``. Unless it is ``strict``,
    a number may be a text, as in an address. Raises InvalidRecord."""
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        first = next(iter(mistakes(kind, value, strict=strict)), None)
        raise InvalidRecord(str(error) if first is None else first.text) from None


def decode_json(kind: type[Kind], text: bytes) -> Kind:
    """The value of a type that a JSON text describes. Raises InvalidRecord."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:  # wrong values are errors of this kind, too
        if kind is Any or not isinstance(error, msgspec.ValidationError):
            raise InvalidRecord(f"it is not JSON: {str(error).removeprefix('JSON is malformed: ')}") from None
    return decode(kind, decode_json(Any, text))


def schemas(kinds: Sequence[Any], ref: str) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """The JSON schemas of types, and those of the classes that they refer to, by name. ``ref`` is the form of the
    references: ``#/components/schemas/{name}``."""
    roots, definitions = msgspec.json.schema_components(kinds, ref_template=ref)
    for definition in definitions.values():
        if "description" in definition:
            definition["description"] = cleandoc(definition["description"])
    plain: dict[str, Any] = decode_json(dict[str, Any], encode_json(definitions))  # a default may be a tuple
    return roots, plain


def schema(kind: Any) -> dict[str, Any]:
    """The JSON schema of a class, with those of the classes that it refers to under ``$defs``."""
    (root,), definitions = schemas([kind], "#/$defs/{name}")
    own = definitions.pop(root["$ref"].rpartition("/")[2])
    return {**own, "$defs": definitions} if definitions else own


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    for kind in (str, int, float):
        if isinstance(value, kind):  # a subclass
            return kind(value)
    raise TypeError(f"a {type(value).__name__} has no JSON form")


encode_json: Callable[[Any], bytes] = msgspec.json.Encoder(enc_hook=_plain).encode
"""The JSON text of a value as ``encode`` takes it."""

# -- mistakes ----------------------------------------------------------------------------------------------------------

Place = tuple[str | int, ...]
"""Where a value is in another: names of fields and places in lists."""


MISSING, UNKNOWN, INVALID = "missing", "unknown", "invalid"
"""The kinds of mistakes: a missing field, an unknown field, and a wrong value."""


class Mistake(NamedTuple):
    """What is wrong with a value: where, and a sentence that begins with the place."""

    place: Place
    text: str
    kind: str = INVALID


def format_place(place: Sequence[str | int]) -> str:
    """A place as people write it: ``after.fetch.on``, ``argv[1]``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")


def expected(words: str, about: Callable[[Any], str | None] | None = None) -> Meta:
    """What a value has to be, in words, where its type does not say that to people:
    ``Annotated[str | list[str], expected("an id or a list of ids")]``. ``about`` may return a sentence about a wrong
    value instead."""
    return Meta(extra={"words": words, "about": about})


def one_of(words: Iterable[str]) -> Meta:
    """What a text has to be: one of these words. For words that are computed; else it is a ``Literal``."""
    words = [*words]
    return Meta(pattern=f"^(?:{'|'.join(map(re.escape, words))}){END}", extra={"words": _one_of(words)})


def mistakes(kind: Any, value: Any, place: Place = (), *, strict: bool = True) -> list[Mistake]:
    """All that is wrong with a value that should be of a type, where ``decode`` stops at the first."""
    if isinstance(value, Mapping) and not isinstance(value, dict):  # in which the library would pass over unknown keys
        value = dict(value)
    try:
        msgspec.convert(value, kind, strict=strict)
        return []
    except msgspec.ValidationError as error:
        reason = str(error)
    kind, limits = _alternative(kind, value)
    found = [
        mistake
        for name, part, item in _parts(kind, value)
        for mistake in mistakes(part, item, (*place, name), strict=strict)
    ]
    found += [*_key_mistakes(kind, value, place)]
    return found or [Mistake(place, f"{format_place(place)}{_problem(kind, limits, value, reason)}".lstrip())]


def field_mistakes(record: msgspec.Struct) -> list[Mistake]:
    """All that is wrong with the fields of a record that its constructor made, which trusts its caller."""
    kind = _fields_only(type(record))
    try:
        msgspec.convert(record, kind, from_attributes=True)
        return []
    except msgspec.ValidationError:  # also for subclasses of float, which are numbers nevertheless
        values = asdict(record).items()
        return mistakes(kind, {name: float(value) if isinstance(value, float) else value for name, value in values})


@cache
def _fields_only(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """A class with the fields of another, and nothing else."""
    return msgspec.defstruct(kind.__name__, [(own.name, own.type) for own in fields_of(kind)])


def _alternative(kind: Any, value: Any, limits: tuple[Meta, ...] = ()) -> tuple[Any, tuple[Meta, ...]]:
    """What a value of some shape has to be: of a union the type with that shape, or all of it if there is none."""
    if typing.get_origin(kind) is typing.Annotated:
        inner, *own = typing.get_args(kind)
        return _alternative(inner, value, (*(meta for meta in own if isinstance(meta, Meta)), *limits))
    if typing.get_origin(kind) not in (typing.Union, UnionType):
        return kind, limits
    kinds = [part for part in typing.get_args(kind) if part is not NoneType]
    if len(kinds) == 1:
        return _alternative(kinds[0], value, limits)
    fitting = [part for part in kinds if _has_shape(part, value) and _has_tag(part, value)]
    return _alternative(fitting[0], value) if fitting else (kind, limits)


def _has_shape(kind: Any, value: Any) -> bool:
    """Whether a value is text, a number, a list or a mapping as the values of a type are."""
    kind, _ = _alternative(kind, value)
    origin = typing.get_origin(kind) or kind
    if origin in (typing.Union, UnionType):
        return any(_has_shape(part, value) for part in typing.get_args(kind))
    if origin is typing.Literal:
        return any(type(value) is type(choice) for choice in typing.get_args(kind))
    if origin in (int, float):
        return isinstance(value, int if origin is int else int | float) and not isinstance(value, bool)
    if origin in _LISTS:
        return isinstance(value, list | tuple | Set)
    return isinstance(value, Mapping if _is_mapping(origin) else origin if origin in (bool, NoneType) else str)


def _has_tag(kind: Any, value: Any) -> bool:
    """Whether a mapping names a class of records, if that has a tag."""
    config = getattr(kind, "__struct_config__", None)
    return config is None or config.tag is None or value.get(config.tag_field) == config.tag


_LISTS = (list, tuple, set, frozenset, Sequence)


def _is_mapping(origin: Any) -> bool:
    return origin in (dict, Mapping) or _is_struct(origin)


def _is_struct(kind: Any) -> bool:
    origin = typing.get_origin(kind) or kind
    return isinstance(origin, type) and issubclass(origin, msgspec.Struct)


def _parts(kind: Any, value: Any) -> Iterator[tuple[str | int, Any, Any]]:
    """The parts of a value of some type: their names, types and values."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if _is_struct(kind) and isinstance(value, Mapping):
        yield from ((f.encode_name, f.type, value[f.encode_name]) for f in fields_of(kind) if f.encode_name in value)
    elif origin in _LISTS and isinstance(value, list | tuple | Set):
        yield from ((index, arguments[0], item) for index, item in enumerate(value))
    elif origin in (dict, Mapping) and isinstance(value, Mapping):
        yield from ((str(name), arguments[1], item) for name, item in value.items())


def _key_mistakes(kind: Any, value: Any, place: Place) -> Iterator[Mistake]:
    """Unknown keys, missing ones, and keys that are not of their type."""
    if not isinstance(value, Mapping):
        return
    if typing.get_origin(kind) in (dict, Mapping):
        for name in value:
            for mistake in mistakes(typing.get_args(kind)[0], name):
                yield Mistake((*place, str(name)), f"a key of {format_place(place)} {mistake.text}")
    if not _is_struct(kind):
        return
    known = {key.encode_name: key for key in fields_of(kind)}
    config = (typing.get_origin(kind) or kind).__struct_config__
    for name in value if config.forbid_unknown_fields else ():
        if name not in known and name != config.tag_field:
            inner = (*place, str(name))
            hint = suggestion(str(name), list(known)) or f"; the keys are {', '.join(known)}"
            yield Mistake(inner, f"unknown key {format_place(inner)!r}{hint}", UNKNOWN)
    for name, key in known.items():
        if key.required and name not in value:
            yield Mistake((*place, name), f"the key {format_place((*place, name))!r} is missing", MISSING)


def _problem(kind: Any, limits: Sequence[Meta], value: Any, reason: str) -> str:
    """What is wrong with a value itself, as the rest of a sentence. ``reason`` is what the library says."""
    hints = next((meta.extra for meta in limits if meta.extra and "words" in meta.extra), {})
    about, words = hints.get("about"), hints.get("words")
    if about is not None and (sentence := about(value)) is not None:
        return f": {sentence}"
    if typing.get_origin(kind) is typing.Literal or not _has_shape(kind, value):
        if kind is str and isinstance(value, bool | int | float):
            return f' must be text; write it in quotes: "{describe_value(value)}"'
        return f" must be {words or _words(kind)}, not {describe_value(value)}"
    if _is_struct(kind):  # what it says itself
        return f": {reason.partition(' - at `')[0]}"
    check = _wrong_number if isinstance(value, int | float) else _wrong_size
    for meta in limits:
        if (wrong := check(meta, value)) is not None:
            return wrong
    return f" is not valid: {reason}" if words is None else f" must be {words}, not {describe_value(value)}"


def _wrong_number(meta: Meta, value: Any) -> str | None:
    for limit, holds, words in (
        (meta.ge, operator.ge, "{:,} or more"),
        (meta.gt, operator.gt, "above {:,}"),
        (meta.le, operator.le, "{:,} or less"),
        (meta.lt, operator.lt, "below {:,}"),
    ):
        if limit is not None and not holds(value, limit):
            return f" must be {words.format(limit)}, not {describe_value(value)}"
    return None


def _wrong_size(meta: Meta, value: Any) -> str | None:
    unit = "character" if isinstance(value, str) else "key" if isinstance(value, Mapping) else "item"
    for limit, holds, words in ((meta.min_length, operator.ge, "least"), (meta.max_length, operator.le, "most")):
        if limit is not None and not holds(len(value), limit):
            noun = unit if limit == 1 else f"{unit}s"
            return f" must have at {words} {limit:,} {noun}, not {len(value):,}" if value else " is empty"
    return None


_WORDS: dict[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    **dict.fromkeys(_LISTS, "a list, such as [one, two]"),
}


def _words(kind: Any) -> str:
    """The values of a type, for people."""
    origin = typing.get_origin(kind) or kind
    if origin is typing.Annotated:
        return _words(typing.get_args(kind)[0])
    if origin in (typing.Union, UnionType):
        return _one_of([_words(part) for part in typing.get_args(kind) if part is not NoneType])
    if origin is typing.Literal:
        return _one_of([repr(choice) for choice in typing.get_args(kind)])
    return "a mapping" if _is_mapping(origin) else _WORDS.get(origin, f"a {getattr(origin, '__name__', origin)}")


def _one_of(words: Sequence[str]) -> str:
    *others, last = dict.fromkeys(words)
    return f"{', '.join(others)} or {last}" if others else last
