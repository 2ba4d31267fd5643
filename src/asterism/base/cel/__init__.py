"""CEL, the Common Expression Language, metered: no expression can take more time or memory than it is given.

Every operation costs steps, paid in advance (``values.py``), and an evaluation that runs out of them ends. That is what
the libraries for CEL do not offer: the usual one needs six seconds for 214 characters of nested macros, aborts the
interpreter on ``['x'].map(a, a + a)`` repeated 40 times, and is quadratic in the length of a list. It serves as the
reference in the tests.
"""

from __future__ import annotations

from asterism.base.cel.cel_errors import ExpressionError, InvalidExpression, TooCostly, Unevaluable
from asterism.base.cel.cel_program import Program, compile_expression

__all__ = ["ExpressionError", "InvalidExpression", "Program", "TooCostly", "Unevaluable", "compile_expression"]
