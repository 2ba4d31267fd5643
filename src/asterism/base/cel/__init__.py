"""CEL, the Common Expression Language, with a bounded cost of time and memory.

Every operation costs steps, paid in advance (cel_values.py), and an evaluation that runs out of them ends with
TooCostly. The libraries for CEL do not offer this: the usual one needs six seconds for 214 characters of nested macros,
aborts the interpreter on ``['x'].map(a, a + a)`` repeated 40 times, and is quadratic in the length of a list. The tests
use it as the reference.

cel_syntax.py parses text into a tree, cel_program.py compiles the tree into closures, cel_functions.py has functions,
fields and macros, cel_values.py the types, operators and errors. regex.py matches regular
expressions in linear time. To add a function, add it to ``FUNCTIONS`` or ``METHODS`` with its cost.
"""
