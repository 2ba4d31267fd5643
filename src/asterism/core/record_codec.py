"""Records as JSON values and back, by the types of their fields: what stores keep, messages, and documents of the API.

A dataclass below ``Record`` has ``to_json`` and ``from_json``: an object with its fields, in their order.

>>> @dataclass(frozen=True)
... class Point(Record, sparse=("label",)):
...     x: float
...     label: str = ""
>>> Point(2.0).to_json()
{'x': 2.0}
>>> Point.from_json({"x": 2.0, "label": "here"})
Point(x=2.0, label='here')

Types are read and functions are made when a class is used first, and nothing when it is defined. A field whose class
has a ``to_json`` or ``from_json`` of its own is written and read by that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from operator import methodcaller
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as hints_of

from asterism.core.json_values import JsonObject

Kind = TypeVar("Kind")
Convert = Callable[[Any], Any]


class InvalidRecord(ValueError):
    """A value that is not what a field asks for. The message says where."""


class RecordForm(NamedTuple):
    """How a class is written and read: see ``Record``."""

    sparse: bool | tuple[str, ...] = False
    key: str = ""
    required: tuple[str, ...] = ()
    lenient: bool = False
    checked: bool = False


class Record:
    """The base of a dataclass with a JSON form. ``sparse`` are the fields that are left out if they have their default:
    these, or all. ``key`` is a field that is not in the form, because the key of the object names it. ``required`` are
    fields with a default that are always written, and without which an object is refused. A ``lenient`` class ignores
    unknown fields, and a ``checked`` one refuses values of other types than its fields have. In other classes only
    lists and objects have to be such; they trust who wrote the rest, or check it in ``__post_init__``."""

    __slots__ = ()
    form: ClassVar[RecordForm] = RecordForm()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__()
        if options:  # a class with slots is made a second time, without them
            cls.form = RecordForm(**options)

    def to_json(self) -> JsonObject:
        data: JsonObject = _record_writer(type(self))(self)  # type: ignore[arg-type]  # classes are hashable
        return data

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The record that ``to_json`` wrote. Raises InvalidRecord, and what its constructor raises."""
        record: Self = _record_reader(cls, (), cls.form.checked)(data)  # type: ignore[arg-type]
        return record

    @classmethod
    def unknown_fields(cls, names: str) -> Exception:
        """The error for an object with unknown fields."""
        return InvalidRecord(f"a {cls.__name__} has no {names}")


def read_record(kind: type[Kind], value: Any) -> Kind:
    """The dataclass that a JSON value describes: ``read_record(Page[Run], {"items": […]})``. Types are checked, unknown
    fields are ignored: a newer server may send some. Records stay as they are. Raises InvalidRecord."""
    record: Kind = (_reader(kind, True) or _same)(value)  # type: ignore[arg-type]  # types are hashable
    return record


def _same(value: Any) -> Any:
    return value


# -- writing -----------------------------------------------------------------------------------------------------------

_own_form = methodcaller("to_json")


@cache
def _record_writer(kind: type[Record]) -> Convert:
    form, hints = kind.form, hints_of(kind)
    written = [field for field in _fields(kind) if field.name != form.key]
    names = [field.name for field in written]
    sparse = set(names if form.sparse is True else form.sparse or ()).difference(form.required)
    known = {f"{field.name}_default": _default(field) for field in written}
    lines = ["def write(record):", " data = {}"]
    for name in names:
        convert = known[f"write_{name}"] = _writer(hints[name])
        put = f"data['{name}'] = " + (f"record.{name}" if convert is None else f"write_{name}(record.{name})")
        lines.append(f" if record.{name} != {name}_default: {put}" if name in sparse else f" {put}")
    exec("\n".join([*lines, " return data"]), known)  # as dataclasses does it: a loop would take twice as long
    write: Convert = known["write"]
    return write


def _fields(kind: Any) -> list[Field[Any]]:
    return [field for field in fields(kind) if field.init]


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _writer(kind: Any) -> Convert | None:
    """What makes JSON of a value of a type; None if it is JSON already."""
    origin, arguments = get_origin(kind), get_args(kind)
    if hasattr(kind, "to_json"):
        return _own_form
    if origin in (Union, UnionType):
        return _union_writer(arguments)
    if origin in (tuple, list, Sequence):
        return _list_writer(_writer(arguments[0]))
    if origin is Mapping:
        return _mapping_writer(_writer(arguments[1]))
    if origin is frozenset:
        return sorted
    return list if isinstance(kind, type) and issubclass(kind, tuple) else None


def _union_writer(kinds: tuple[Any, ...]) -> Convert | None:
    [writer] = {_writer(kind) for kind in kinds if kind is not NoneType}  # other unions have no one form
    if writer is None or NoneType not in kinds:
        return writer
    return lambda value: None if value is None else writer(value)


def _list_writer(writer: Convert | None) -> Convert:
    return list if writer is None else lambda values: [writer(value) for value in values]


def _mapping_writer(writer: Convert | None) -> Convert:
    return dict if writer is None else lambda values: {name: writer(value) for name, value in values.items()}


# -- reading -----------------------------------------------------------------------------------------------------------


@cache
def _reader(kind: Any, checked: bool) -> Convert | None:
    """What reads values of a type; None if they stay as they are."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any or isinstance(kind, TypeVar):
        return None
    if origin is Annotated:
        return _reader(arguments[0], checked)
    if origin in (Union, UnionType):
        return _union_reader(arguments, checked)
    if origin is Literal:
        return _literal_reader(arguments) if checked else None
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _tuple_reader(tuple, [_reader(argument, checked) for argument in arguments])
    if origin in (tuple, list, frozenset, Sequence):
        return _list_reader(list if origin is Sequence else origin, _reader(arguments[0], checked))
    if origin in (dict, Mapping):
        return _mapping_reader(_reader(arguments[1], checked))
    if is_dataclass(origin or kind):
        own: Any = getattr(kind, "from_json", Record.from_json)
        derived = own.__func__ is Record.__dict__["from_json"].__func__
        return _record_reader(origin or kind, arguments, checked) if derived else own
    if issubclass(kind, tuple):
        return _tuple_reader(kind._make, [_reader(hint, checked) for hint in hints_of(kind).values()])
    return _plain_reader(kind) if checked else None


@cache
def _record_reader(kind: Any, arguments: tuple[Any, ...], checked: bool) -> Convert:
    replaced = dict(zip(getattr(kind, "__parameters__", ()), arguments, strict=False))
    hints = hints_of(kind, include_extras=True)
    types = {field.name: _substituted(hints[field.name], replaced) for field in _fields(kind)}
    readers = [(name, reader) for name in types if (reader := _reader(types[name], checked)) is not None]
    form = kind.form if issubclass(kind, Record) else RecordForm(lenient=True)
    needed = [
        field.name
        for field in _fields(kind)
        if field.name in form.required or (field.default is MISSING and field.default_factory is MISSING)
    ]

    def read(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if not isinstance(value, Mapping):
            raise InvalidRecord(f"expected a {kind.__name__}, not {type(value).__name__}")
        data = {name: value[name] for name in types if name in value} if form.lenient else {**value}
        for name, reader in readers:
            if name in data:
                try:
                    data[name] = reader(data[name])
                except InvalidRecord as error:
                    raise InvalidRecord(f"{name}: {error}") from None
        if not data.keys() <= types.keys():
            raise kind.unknown_fields(", ".join(sorted(map(str, data.keys() - types.keys()))))
        for name in needed:
            if name not in data:
                raise InvalidRecord(f"{name} is missing")
        return kind(**data)

    return read


def _substituted(hint: Any, replaced: Mapping[Any, Any]) -> Any:
    """A type with the parameters of its generic class filled in."""
    if hint in replaced:
        return replaced[hint]
    parameters = getattr(hint, "__parameters__", ())
    return hint[tuple(replaced.get(parameter, parameter) for parameter in parameters)] if parameters else hint


def _union_reader(kinds: tuple[Any, ...], checked: bool) -> Convert | None:
    readers = [_reader(kind, checked) or _same for kind in kinds if kind is not NoneType]
    if set(readers) == {_same}:
        return None

    def read(value: Any) -> Any:
        if value is None and NoneType in kinds:
            return None
        for reader in readers[:-1]:
            try:
                return reader(value)
            except InvalidRecord:
                continue
        return readers[-1](value)

    return read


def _literal_reader(values: tuple[Any, ...]) -> Convert:
    def read(value: Any) -> Any:
        if value not in values:
            raise InvalidRecord(f"expected one of {', '.join(map(str, values))}")
        return value

    return read


def _list_reader(make: Convert, reader: Convert | None) -> Convert:
    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise InvalidRecord(f"expected a list, not {type(value).__name__}")
        return make(value if reader is None else [reader(item) for item in value])

    return read


def _tuple_reader(make: Convert, readers: Sequence[Convert | None]) -> Convert:
    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(readers):
            raise InvalidRecord(f"expected a list of {len(readers)}")
        return make(item if reader is None else reader(item) for reader, item in zip(readers, value, strict=True))

    return read


def _mapping_reader(reader: Convert | None) -> Convert:
    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise InvalidRecord(f"expected an object, not {type(value).__name__}")
        return {str(name): item if reader is None else reader(item) for name, item in value.items()}

    return read


_LARGEST = 2**1023
"""A whole number that is a float. Some larger ones are, too, but no record has one."""


def _plain_reader(kind: type) -> Convert:
    def read(value: Any) -> Any:
        if kind is float and type(value) is int and abs(value) < _LARGEST:
            return float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InvalidRecord(f"expected {kind.__name__}, not {type(value).__name__}")
        return value

    return read
