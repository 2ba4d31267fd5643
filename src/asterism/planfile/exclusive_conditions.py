"""Conditions that exclude each other: whether two expressions in CEL can hold for the same result.

The answer is True only if it is certain: expressions that this module does not understand exclude nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from asterism.base.cel.cel_syntax import Chain, Literal, Logical, Node, Prefixed, parse
from asterism.base.cel.cel_values import InvalidExpression

_OPPOSITES = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_LOWER, _UPPER = (">", ">="), ("<", "<=")

Fact = tuple[Any, str, Any]
"""(expression, operator, expression). ``(x, "==", True)`` stands for an expression that holds."""

TRUE = Literal(True)


def never_both(text: str, other: str) -> bool:
    """Whether two expressions never hold for the same values."""
    return any(
        fact[0] == another[0] and _disjoint(fact[1:], another[1:]) for fact in _facts(text) for another in _facts(other)
    )


@lru_cache(maxsize=4096)
def _facts(text: str) -> tuple[Fact, ...]:
    """What holds if an expression does."""
    try:
        tree = parse(text)
    except (InvalidExpression, RecursionError):
        return ()
    return tuple(_fact(part) for part in _conjuncts(tree))


def _conjuncts(tree: Node) -> tuple[Node, ...]:
    return tree.operands if isinstance(tree, Logical) and tree.operator == "&&" else (tree,)


def _fact(tree: Any) -> Fact:
    negated = False
    while True:
        if isinstance(tree, Prefixed) and tree.operator == "!":
            negated ^= tree.times % 2 == 1
            tree = tree.of
        elif isinstance(tree, Chain) and len(tree.rest) == 1 and tree.rest[0][0] in _OPPOSITES:
            operator, right = tree.rest[0]
            if operator in ("==", "!=") and isinstance(right, Literal) and isinstance(right.value, bool):
                negated ^= (operator == "==") is not right.value
                tree = tree.first
                continue
            return tree.first, _OPPOSITES[operator] if negated else operator, right
        else:
            return tree, "!=" if negated else "==", TRUE


def _disjoint(a: tuple[str, Any], b: tuple[str, Any]) -> bool:
    """Whether no value stands in both relations."""
    (relation, right), (other, boundary) = a, b
    if right == boundary:
        return _OPPOSITES[relation] == other or {relation, other} in ({"<", ">"}, {"==", "<"}, {"==", ">"})
    if not (isinstance(right, Literal) and isinstance(boundary, Literal)):
        return False
    x, y = right.value, boundary.value
    if relation == other == "==":
        return bool(x != y)
    if not (_is_number(x) and _is_number(y)):
        return False
    if relation in _UPPER or (relation == "==" and other in _LOWER):
        return bool(x < y) and (other in _LOWER or other == "==")
    return bool(y < x) and relation in (*_LOWER, "==") and (other in _UPPER or other == "==")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
