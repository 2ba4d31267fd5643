"""Small expressions that cost more than any budget."""

from __future__ import annotations

TEN = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"


def nested(levels: int) -> str:
    """Macros in macros: ten times as costly with each level, and a list of lists of lists."""
    text = "1"
    for level in range(levels):
        text = f"{TEN}.map(x{level}, {text})"
    return text


def doubled(start: str = "'x'") -> str:
    """Twice as long with each step."""
    return f"[{start}]" + ".map(a, a + a)" * 40


CONSTANT = {"nested macros": f"{nested(9)} == []", "doubled text": f"{doubled()} == []"}
"""Conditions that cost too much for any data, so that a check refuses them."""


def over(name: str) -> dict[str, str]:
    """Conditions that cost too much once there is data: ``name`` is a text of it."""
    nested = f"{name} != ''"
    for level in range(9):
        nested = f"{TEN}.all(x{level}, {nested})"
    return {"nested macros": nested, "doubled text": f"{doubled(name)} != []"}
