"""Errors of expressions. No message repeats the data of an expression, since data may contain secrets.

::

    ExpressionError (ValueError)
    ├── InvalidExpression   it cannot be compiled: syntax, an unknown function, constants that cost too much
    ├── Unevaluable         it failed on this data; &&, || and the macros may ignore it
    └── TooCostly           it needs more steps than its budget; never ignored
"""

from __future__ import annotations


class ExpressionError(ValueError):
    """An expression that has no value."""


class InvalidExpression(ExpressionError):
    """An expression that cannot be compiled."""


class Unevaluable(ExpressionError):
    """An expression that failed on the data it was given."""


class TooCostly(ExpressionError):
    """An evaluation that ran out of steps."""
