"""The parser of CEL: from text to a syntax tree.

Operators of one level, chains of members and chains of conditions become one node each, with a list. So the depth of
the tree is that of the brackets in the text, which is bounded, however long the expression is.

Not supported, and refused: messages (``Type{field: …}``), optional values (``?.``), quoted field names.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, NoReturn

from asterism.base.cel.cel_values import LARGEST_INT, LARGEST_UINT, InvalidExpression, UInt

LONGEST = 4_000
"""The longest expression, in characters."""

DEEPEST = 32
"""How deep brackets may be nested."""

MACROS = {"all": (2,), "exists": (2,), "exists_one": (2,), "existsOne": (2,), "filter": (2,), "map": (2, 3)}
"""The macros over a list or map, and how many arguments they take."""


class Literal(NamedTuple):
    value: Any


class Name(NamedTuple):
    name: str


class ListOf(NamedTuple):
    items: tuple[Node, ...]


class MapOf(NamedTuple):
    entries: tuple[tuple[Node, Node], ...]


class Call(NamedTuple):
    function: str
    arguments: tuple[Node, ...]


class Has(NamedTuple):
    of: Node
    field: str


class Prefixed(NamedTuple):
    """``!`` or ``-``, repeated ``times`` times."""

    operator: str
    times: int
    of: Node


class Chain(NamedTuple):
    """Operators of one level, from left to right: ``a + b - c``."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


class Logical(NamedTuple):
    """``&&`` or ``||`` between all operands."""

    operator: str
    operands: tuple[Node, ...]


class Conditional(NamedTuple):
    """``a ? b : c ? d : e``: the branches, and the value if no condition holds."""

    branches: tuple[tuple[Node, Node], ...]
    otherwise: Node


class Field(NamedTuple):
    name: str


class Item(NamedTuple):
    key: Node


class Method(NamedTuple):
    name: str
    arguments: tuple[Node, ...]


class Macro(NamedTuple):
    name: str
    variable: str
    bodies: tuple[Node, ...]


class Member(NamedTuple):
    """The value ``of``, and its members from left to right: ``a.b[c].d()``."""

    of: Node
    parts: tuple[Field | Item | Method | Macro, ...]


Node = Literal | Name | ListOf | MapOf | Call | Has | Prefixed | Chain | Logical | Conditional | Member


class Token(NamedTuple):
    kind: str
    text: str
    at: int


_ESCAPE = r"\\(?:[abfnrtv\\?\"'`]|x[0-9a-fA-F]{2}|X[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2})"
_EXPONENT = r"[eE][+-]?[0-9]+"
# Each alternative matches or stops the tokenizer, so that no text is scanned more than a few times.
_TOKEN = re.compile(
    rf"""(?P<space>(?:[\t\n\f\r ]|//[^\n]*)+)
    |(?P<raw>(?:[rR][bB]?|[bB][rR])(?:'''[\s\S]*?'''|\"\"\"[\s\S]*?\"\"\"|'(?!'')[^'\r\n]*'|"(?!"")[^"\r\n]*"))
    |(?P<string>[bB]?(?:'''(?:[^\\]|{_ESCAPE})*?'''|\"\"\"(?:[^\\]|{_ESCAPE})*?\"\"\"
        |'(?!'')(?:[^'\\\r\n]|{_ESCAPE})*'|"(?!"")(?:[^"\\\r\n]|{_ESCAPE})*"))
    |(?P<double>[0-9]+\.[0-9]+(?:{_EXPONENT})?|[0-9]+{_EXPONENT}|\.[0-9]+(?:{_EXPONENT})?)
    |(?P<int>(?:0x[0-9a-fA-F]+|[0-9]+)[uU]?)
    |(?P<name>[_a-zA-Z][_a-zA-Z0-9]*)
    |(?P<sign>&&|\|\||[<>=!]=|[-+*/%<>!?:.,()\[\]{{}}])""",
    re.VERBOSE,
)
_ESCAPED = re.compile(_ESCAPE)
_SHORT = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_CONSTANTS = {"true": True, "false": False, "null": None}
_RESERVED = frozenset(
    {"as", "break", "const", "continue", "else", "for", "function", "if", "import"}
    | {"let", "loop", "package", "namespace", "return", "var", "void", "while"}
)
_RELATIONS = frozenset({"<", "<=", ">", ">=", "==", "!=", "in"})


def parse(text: str) -> Node:
    """The tree of an expression. Raises InvalidExpression with the position."""
    if len(text) > LONGEST:
        raise InvalidExpression(f"it is longer than {LONGEST:,} characters")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidExpression("it contains half of a surrogate pair, which is not a character") from None
    return _Parser(text).whole()


def tokens(text: str) -> list[Token]:
    """The tokens of an expression, the last of kind ``end``. Raises InvalidExpression with the position."""
    scanned, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            what = "a text that does not end, or an unknown escape in it" if text[at] in "'\"" else repr(text[at])
            raise InvalidExpression(f"at character {at + 1}: {what}")
        kind = str(match.lastgroup)
        if kind != "space":
            scanned.append(Token("sign" if match.group() == "in" else kind, match.group(), at))
        at = match.end()
    scanned.append(Token("end", "", at))
    return scanned


class _Parser:
    """Recursive descent; one level of recursion for each pair of brackets."""

    def __init__(self, text: str) -> None:
        self._tokens = tokens(text)
        self._next = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._expression()
        if self._tokens[self._next].kind != "end":
            self._unexpected("the end")
        return node

    # -- tokens --

    def _sees(self, sign: str) -> bool:
        token = self._tokens[self._next]
        return token.kind == "sign" and token.text == sign

    def _accept(self, sign: str) -> bool:
        if self._sees(sign):
            self._next += 1
            return True
        return False

    def _expect(self, sign: str) -> None:
        if not self._accept(sign):
            self._unexpected(repr(sign))

    def _unexpected(self, wanted: str) -> NoReturn:
        token = self._tokens[self._next]
        problem = "it ends" if token.kind == "end" else f"found {token.text[:40]!r}"
        raise InvalidExpression(f"at character {token.at + 1}: {problem}, expected {wanted}")

    def _identifier(self) -> str:
        token = self._tokens[self._next]
        if token.kind != "name":
            self._unexpected("a name")
        self._next += 1
        return token.text

    # -- levels of operators, the loosest first --

    def _expression(self) -> Node:
        self._depth += 1
        if self._depth > DEEPEST:
            raise InvalidExpression(f"its brackets are nested more than {DEEPEST} deep")
        node, branches = self._logical("||"), []
        while self._accept("?"):
            value = self._logical("||")
            self._expect(":")
            branches.append((node, value))
            node = self._logical("||")
        self._depth -= 1
        return Conditional(tuple(branches), node) if branches else node

    def _logical(self, operator: str) -> Node:
        operands = [self._operand(operator)]
        while self._accept(operator):
            operands.append(self._operand(operator))
        return Logical(operator, tuple(operands)) if len(operands) > 1 else operands[0]

    def _operand(self, operator: str) -> Node:
        return self._logical("&&") if operator == "||" else self._chain(0)

    _LEVELS = (_RELATIONS, frozenset("+-"), frozenset("*/%"))

    def _chain(self, level: int) -> Node:
        if level == len(self._LEVELS):
            return self._prefixed()
        signs, first, rest = self._LEVELS[level], self._chain(level + 1), []
        while (token := self._tokens[self._next]).kind == "sign" and token.text in signs:
            self._next += 1
            rest.append((token.text, self._chain(level + 1)))
        return Chain(first, tuple(rest)) if rest else first

    def _prefixed(self) -> Node:
        for operator in ("!", "-"):
            times = 0
            while self._accept(operator):
                times += 1
            if times and operator == "-" and self._tokens[self._next].kind in ("int", "double"):
                self._next, times = self._next - 1, times - 1  # the last sign belongs to the number
            if times:
                return Prefixed(operator, times, self._member())
        return self._member()

    # -- members and their values --

    def _member(self) -> Node:
        negative = self._sees("-") and self._tokens[self._next + 1].kind in ("int", "double")
        self._next += negative
        node = self._primary(negative)
        parts: list[Field | Item | Method | Macro] = []
        while True:
            if self._accept("."):
                name = self._identifier()
                parts.append(self._called(name) if self._accept("(") else Field(name))
            elif self._accept("["):
                parts.append(Item(self._expression()))
                self._expect("]")
            else:
                return Member(node, tuple(parts)) if parts else node

    def _called(self, name: str) -> Method | Macro:
        arguments = self._list(")")
        if name not in MACROS:
            return Method(name, arguments)
        if len(arguments) not in MACROS[name] or not isinstance(arguments[0], Name):
            raise InvalidExpression(f"'{name}' takes the name of a variable and an expression: {name}(x, …)")
        return Macro(name, arguments[0].name, arguments[1:])

    def _primary(self, negative: bool) -> Node:
        token = self._tokens[self._next]
        self._next += 1
        match token.kind, token.text:
            case ("int", _):
                return Literal(_integer(token, negative))
            case ("double", _):
                return Literal(-float(token.text) if negative else float(token.text))
            case ("string" | "raw", _):
                return Literal(_text(token))
            case ("name", _):
                return self._named(token)
            case ("sign", "("):
                node = self._expression()
                self._expect(")")
                return node
            case ("sign", "["):
                return ListOf(self._list("]"))
            case ("sign", "{"):
                return MapOf(self._entries())
        self._next -= 1
        self._unexpected("a value")

    def _named(self, token: Token) -> Node:
        if token.text in _CONSTANTS:
            return Literal(_CONSTANTS[token.text])
        if token.text in _RESERVED:
            raise InvalidExpression(f"at character {token.at + 1}: '{token.text}' is a reserved word")
        if not self._accept("("):
            return Name(token.text)
        arguments = self._list(")")
        if token.text != "has":
            return Call(token.text, arguments)
        match arguments:
            case [Member(of, (*parts, Field(name)))]:
                return Has(Member(of, tuple(parts)) if parts else of, name)
        raise InvalidExpression("'has' takes a field: has(result.name)")

    def _list(self, end: str) -> tuple[Node, ...]:
        items: list[Node] = []
        while not self._accept(end):
            items.append(self._expression())
            if not self._accept(","):
                self._expect(end)
                break
        return tuple(items)

    def _entries(self) -> tuple[tuple[Node, Node], ...]:
        entries: list[tuple[Node, Node]] = []
        while not self._accept("}"):
            key = self._expression()
            self._expect(":")
            entries.append((key, self._expression()))
            if not self._accept(","):
                self._expect("}")
                break
        return tuple(entries)


def _integer(token: Token, negative: bool) -> int:
    digits = token.text.rstrip("uU")
    number = int(digits, 16 if digits.startswith("0x") else 10) if len(digits) <= 40 else LARGEST_UINT + 1
    unsigned = len(digits) < len(token.text)
    if number > (LARGEST_UINT if unsigned else LARGEST_INT + negative) or (unsigned and negative):
        raise InvalidExpression(f"at character {token.at + 1}: the integer is out of range")
    if unsigned:
        return UInt(number)
    return -number if negative else number


def _text(token: Token) -> str | bytes:
    body = token.text.lstrip("rRbB")
    prefix = token.text[: -len(body)].lower()
    quotes = 3 if body[:3] in ("'''", '"""') else 1
    body = body[quotes:-quotes]
    if "b" not in prefix:
        return body if "r" in prefix else _ESCAPED.sub(lambda escape: chr(_code(escape.group(), token)), body)
    if "r" in prefix:
        return body.encode()
    pieces, at = [], 0
    for escape in _ESCAPED.finditer(body):
        code = _code(escape.group(), token)
        pieces += [
            body[at : escape.start()].encode(),
            chr(code).encode() if escape.group()[1] in "uU" else bytes([code]),
        ]
        at = escape.end()
    return b"".join([*pieces, body[at:].encode()])


def _code(escape: str, token: Token) -> int:
    mark = escape[1]
    if mark in "xXuU":
        code = int(escape[2:], 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise InvalidExpression(f"at character {token.at + 1}: {escape} is not a character")
        return code
    return int(escape[1:], 8) if mark.isdigit() else _SHORT.get(mark, ord(mark))
