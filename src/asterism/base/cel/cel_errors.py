"""What can be wrong with an expression. No message repeats data that the expression looked at: data may hold secrets.

::

    ExpressionError (ValueError)
    ├── InvalidExpression   it cannot be compiled: syntax, an unknown function, constants that cost too much
    ├── Unevaluable         it failed on this data; && and || and the macros may pass over this one
    └── TooCostly           it needs more steps than it has; nothing passes over this one
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
