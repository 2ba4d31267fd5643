"""Documents from JSON values, by the types of their fields.

A command on a store of its own and a client of a server read the same documents; neither has to load pydantic for it,
which takes longer than most commands. Fields that a class does not have are ignored: a newer server may send some.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind")
Reader = Callable[[Any], Any]


class NotADocument(ValueError):
    """A value that is not what a field asks for. The message says where."""


def read_document(kind: type[Kind], value: Any) -> Kind:
    """The document that a JSON value describes: ``read_document(Page[Run], {"items": […]})``. Values that are documents
    already stay as they are. Raises NotADocument."""
    document: Kind = _reader(kind)(value)  # type: ignore[arg-type]  # types are hashable
    return document


def document_of(kind: type[Kind], *sources: object, **fields: Any) -> Kind:
    """A document whose fields are the attributes of these objects with the same names, where ``fields`` does not give
    them; of two objects that have one, the first counts."""
    for name in kind.__dataclass_fields__:  # type: ignore[attr-defined]
        if name not in fields:
            source = next((source for source in sources if hasattr(source, name)), None)
            if source is not None:
                fields[name] = getattr(source, name)
    return kind(**fields)


@cache
def _reader(kind: Any) -> Reader:
    """What reads values of a type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any or isinstance(kind, TypeVar):
        return lambda value: value
    if origin is Annotated:
        return _reader(arguments[0])
    if origin in (Union, UnionType):
        return _union_reader(arguments)
    if origin is Literal:
        return _literal_reader(arguments)
    if origin is list:
        return _list_reader(_reader(arguments[0]))
    if origin is tuple:
        return _tuple_reader([_reader(argument) for argument in arguments])
    if origin is dict:
        return _dict_reader(_reader(arguments[1]))
    if dataclasses.is_dataclass(origin or kind):
        return _document_reader(origin or kind, arguments)
    return _plain_reader(kind)


def _document_reader(kind: Any, arguments: tuple[Any, ...]) -> Reader:
    replaced = dict(zip(getattr(kind, "__parameters__", ()), arguments, strict=False))
    hints = get_type_hints(kind, include_extras=True)
    readers = {field.name: _reader(_substituted(hints[field.name], replaced)) for field in dataclasses.fields(kind)}

    def read(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if not isinstance(value, Mapping):
            raise NotADocument(f"expected a {kind.__name__}, not {type(value).__name__}")
        fields = {}
        for name, reader in readers.items():
            if name in value:
                try:
                    fields[name] = reader(value[name])
                except NotADocument as error:
                    raise NotADocument(f"{name}: {error}") from None
        try:
            return kind(**fields)
        except TypeError as error:  # a field is missing
            raise NotADocument(str(error).partition("() ")[2]) from None

    return read


def _substituted(hint: Any, replaced: Mapping[Any, Any]) -> Any:
    """A type with the parameters of its generic class filled in."""
    if hint in replaced:
        return replaced[hint]
    parameters = getattr(hint, "__parameters__", ())
    return hint[tuple(replaced.get(parameter, parameter) for parameter in parameters)] if parameters else hint


def _union_reader(kinds: tuple[Any, ...]) -> Reader:
    readers = [_reader(kind) for kind in kinds if kind is not NoneType]

    def read(value: Any) -> Any:
        if value is None and NoneType in kinds:
            return None
        for reader in readers[:-1]:
            try:
                return reader(value)
            except NotADocument:
                continue
        return readers[-1](value)

    return read


def _literal_reader(values: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:
        if value not in values:
            raise NotADocument(f"expected one of {', '.join(map(str, values))}")
        return value

    return read


def _list_reader(reader: Reader) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise NotADocument(f"expected a list, not {type(value).__name__}")
        return [reader(item) for item in value]

    return read


def _tuple_reader(readers: Sequence[Reader]) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(readers):
            raise NotADocument(f"expected a list of {len(readers)}")
        return tuple(reader(item) for reader, item in zip(readers, value, strict=True))

    return read


def _dict_reader(reader: Reader) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise NotADocument(f"expected an object, not {type(value).__name__}")
        return {str(name): reader(item) for name, item in value.items()}

    return read


def _plain_reader(kind: type) -> Reader:
    def read(value: Any) -> Any:
        if kind is float and type(value) is int:
            return float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise NotADocument(f"expected {kind.__name__}, not {type(value).__name__}")
        return value

    return read
