"""Compiled CEL programs: each node of the syntax tree becomes a function that returns its value.

Parts without names are computed at compile time. So an expression that is too costly for any data is refused before it
runs, and a list such as ``["a", "b"]`` is built once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from asterism.base.cel import cel_syntax
from asterism.base.cel.cel_functions import (
    ERROR,
    FUNCTIONS,
    MACROS,
    METHODS,
    Function,
    Run,
    field,
    item_at,
    step,
    truth,
)
from asterism.base.cel.cel_values import (
    ABSENT,
    MAP,
    OPERATORS,
    TYPES,
    BuiltList,
    BuiltMap,
    Evaluation,
    ExpressionError,
    InvalidExpression,
    TooCostly,
    Unevaluable,
    as_key,
    exported,
    find,
    kind_of,
    negative,
    no_overload,
)
from asterism.base.cel.regex import metered_pattern

CONSTANT_STEPS = 10_000
"""The budget of all constants of an expression, in steps."""


class Program:
    """An expression that has been compiled."""

    __slots__ = ("_run", "_variables")

    def __init__(self, run: Run, variables: int) -> None:
        self._run, self._variables = run, variables

    def evaluate(self, names: Mapping[str, Any], steps: int) -> Any:
        """The value of the expression, within a budget of ``steps``. Raises Unevaluable and TooCostly."""
        return self.metered(names, steps)[0]

    def metered(self, names: Mapping[str, Any], steps: int) -> tuple[Any, int]:
        """As ``evaluate``, and how many of the steps are left."""
        run = Evaluation(names, self._variables, steps)
        try:
            return exported(run, self._run(run)), run.left
        except TooCostly:
            raise TooCostly(
                f"it needs more than {steps:,} steps on this data; use fewer nested macros, or less data"
            ) from None
        except RecursionError:
            raise Unevaluable("its data is nested too deep") from None
        except (ExpressionError, MemoryError):
            raise
        except Exception as error:  # objects of users in the data may raise anything
            raise Unevaluable(f"its data raised {type(error).__name__}") from None


def compile_expression(text: str) -> Program:
    """The program of an expression. Raises InvalidExpression."""
    compiler = _Compiler()
    try:
        code = compiler.compile(cel_syntax.parse(text))
    except TooCostly:
        raise InvalidExpression(
            f"its constants alone need more than {CONSTANT_STEPS:,} steps; use fewer nested or chained macros"
        ) from None
    except RecursionError:
        raise InvalidExpression("it is nested too deep") from None
    return Program(code.run, compiler.most_variables)


class _Code(NamedTuple):
    run: Callable[..., Any]
    """A Run, or a Part of a member."""

    free: frozenset[str]
    """The names and variables on which the value depends."""


_NOTHING: frozenset[str] = frozenset()


class _Compiler:
    def __init__(self) -> None:
        self.most_variables = 0
        self._scope: dict[str, int] = {}  # the slot of the variable of each enclosing macro
        self._macros = 0  # how many macros enclose this node
        self._constants = Evaluation({}, cel_syntax.DEEPEST, CONSTANT_STEPS)

    def compile(self, node: cel_syntax.Node) -> _Code:
        code: _Code = getattr(self, f"_{type(node).__name__.lower()}")(node)
        if code.free or isinstance(node, cel_syntax.Literal):
            return code
        try:
            value = code.run(self._constants)
            exported(self._constants, value)  # charged in full, even if parts are shared
            return _constant(value)
        except Unevaluable:
            return code  # it may never be evaluated

    def _all(self, nodes: tuple[cel_syntax.Node, ...]) -> tuple[tuple[Run, ...], frozenset[str]]:
        codes = [self.compile(node) for node in nodes]
        return tuple(code.run for code in codes), _NOTHING.union(*(code.free for code in codes))

    # -- values --

    def _literal(self, node: cel_syntax.Literal) -> _Code:
        return _constant(node.value)

    def _name(self, node: cel_syntax.Name) -> _Code:
        name, slot = node.name, self._scope.get(node.name)
        if slot is not None:
            return _Code(_variable(slot), frozenset({name}))

        def run(run: Evaluation) -> Any:
            step(run)
            value = run.names.get(name, ABSENT)
            if value is ABSENT:
                value = TYPES.get(name, ABSENT)
                if value is ABSENT:
                    few = f"; the names are {', '.join(sorted(run.names))}" if len(run.names) <= 5 else ""
                    raise Unevaluable(f"there is no name '{name}' here{few}")
            return value

        return _Code(run, frozenset({name}))

    def _listof(self, node: cel_syntax.ListOf) -> _Code:
        items, free = self._all(node.items)

        def run(run: Evaluation) -> Any:
            run.spend(1 + len(items))
            return BuiltList([item(run) for item in items])

        return _Code(run, free)

    def _mapof(self, node: cel_syntax.MapOf) -> _Code:
        keys, free = self._all(tuple(key for key, _ in node.entries))
        values, more = self._all(tuple(value for _, value in node.entries))

        def run(run: Evaluation) -> Any:
            run.spend(1 + 3 * len(keys))
            return BuiltMap([(as_key(key(run)), value(run)) for key, value in zip(keys, values, strict=True)])

        return _Code(run, free | more)

    # -- operators --

    def _prefixed(self, node: cel_syntax.Prefixed) -> _Code:
        of, free = self.compile(node.of)
        odd = node.times % 2 == 1
        if node.operator == "!":

            def invert(run: Evaluation) -> Any:
                step(run)
                return truth(of(run), "'!'") != odd

            return _Code(invert, free)

        def negate(run: Evaluation) -> Any:
            step(run)
            value = negative(of(run))
            return value if odd else negative(value)

        return _Code(negate, free)

    def _chain(self, node: cel_syntax.Chain) -> _Code:
        first = self.compile(node.first)
        rights, free = self._all(tuple(right for _, right in node.rest))
        operations = tuple((OPERATORS[sign], right) for (sign, _), right in zip(node.rest, rights, strict=True))
        if len(operations) == 1:
            return _Code(_pair(first.run, *operations[0]), first.free | free)

        def run(run: Evaluation) -> Any:
            value = first.run(run)
            for operate, right in operations:
                step(run)
                value = operate(run, value, right(run))
            return value

        return _Code(run, first.free | free)

    def _logical(self, node: cel_syntax.Logical) -> _Code:
        """Commutative, as in CEL: a decisive operand hides the error of another one."""
        operands, free = self._all(node.operands)
        decisive, sign = node.operator == "||", f"'{node.operator}'"

        def run(run: Evaluation) -> Any:
            failed: Unevaluable | None = None
            for operand in operands:
                step(run)
                try:
                    value = operand(run)
                    if value is decisive:
                        return decisive
                    if value is not (not decisive):
                        raise no_overload(sign, value)
                except Unevaluable as error:
                    run.spend(ERROR)
                    failed = error
            if failed is not None:
                raise failed
            return not decisive

        return _Code(run, free)

    def _conditional(self, node: cel_syntax.Conditional) -> _Code:
        conditions, free = self._all(tuple(condition for condition, _ in node.branches))
        values, more = self._all(tuple(value for _, value in node.branches))
        otherwise = self.compile(node.otherwise)
        branches = tuple(zip(conditions, values, strict=True))

        def run(run: Evaluation) -> Any:
            for condition, value in branches:
                step(run)
                if truth(condition(run), "'?:'"):
                    return value(run)
            return otherwise.run(run)

        return _Code(run, free | more | otherwise.free)

    # -- calls --

    def _call(self, node: cel_syntax.Call) -> _Code:
        function = _known("function", FUNCTIONS, node.function, node.arguments)
        if node.function == "matches":
            self._check_pattern(node.arguments[1])
        arguments, free = self._all(node.arguments)

        def run(run: Evaluation) -> Any:
            step(run)
            return function(run, *[argument(run) for argument in arguments])

        return _Code(run, free)

    def _has(self, node: cel_syntax.Has) -> _Code:
        of, free = self.compile(node.of)
        name = node.field

        def run(run: Evaluation) -> Any:
            step(run)
            value = of(run)
            if kind_of(value) != MAP:
                raise no_overload("'has'", value)
            return find(value, name) is not ABSENT

        return _Code(run, free)

    # -- members --

    def _member(self, node: cel_syntax.Member) -> _Code:
        of = self.compile(node.of)
        codes = [self._part(part) for part in node.parts]
        parts, free = tuple(code.run for code in codes), of.free.union(*(code.free for code in codes))
        start = of.run
        if len(parts) == 1:
            only = parts[0]
            return _Code(lambda run: only(run, start(run)), free)

        def run(run: Evaluation) -> Any:
            value = start(run)
            for part in parts:
                value = part(run, value)
            return value

        return _Code(run, free)

    def _part(self, part: cel_syntax.Field | cel_syntax.Item | cel_syntax.Method | cel_syntax.Macro) -> _Code:
        match part:
            case cel_syntax.Field(name):
                return _Code(field(name), _NOTHING)
            case cel_syntax.Item(key):
                code = self.compile(key)
                return _Code(item_at(code.run), code.free)
            case cel_syntax.Method(name, arguments):
                return self._method(name, arguments)
            case cel_syntax.Macro():
                return self._macro(part)

    def _method(self, name: str, nodes: tuple[cel_syntax.Node, ...]) -> _Code:
        method = _known("method", METHODS, name, nodes)
        if name == "matches":
            self._check_pattern(nodes[0])
        arguments, free = self._all(nodes)

        def run(run: Evaluation, value: Any) -> Any:
            step(run)
            return method(run, value, *[argument(run) for argument in arguments])

        return _Code(run, free)

    def _check_pattern(self, node: cel_syntax.Node) -> None:
        """Check a literal pattern at compile time, and charge it like other constants."""
        if isinstance(node, cel_syntax.Literal) and isinstance(node.value, str):
            metered_pattern(self._constants, node.value)

    def _macro(self, node: cel_syntax.Macro) -> _Code:
        outer, slot = self._scope, self._macros
        self._scope, self._macros = {**outer, node.variable: slot}, slot + 1
        self.most_variables = max(self.most_variables, self._macros)
        bodies, free = self._all(node.bodies)
        self._scope, self._macros = outer, slot
        run = MACROS[node.name](slot, f"'{node.name}'", *bodies)
        return _Code(run, free - {node.variable})


# -- small programs ----------------------------------------------------------------------------------------------------


def _constant(value: Any) -> _Code:
    def run(run: Evaluation) -> Any:
        run.left -= 1
        if run.left < 0:
            raise TooCostly
        return value

    return _Code(run, _NOTHING)


def _variable(slot: int) -> Run:
    def run(run: Evaluation) -> Any:
        run.left -= 1
        if run.left < 0:
            raise TooCostly
        return run.variables[slot]

    return run


def _pair(left: Run, operate: Function, right: Run) -> Run:
    def run(run: Evaluation) -> Any:
        run.left -= 1
        if run.left < 0:
            raise TooCostly
        return operate(run, left(run), right(run))

    return run


# -- check of a call at compile time -----------------------------------------------------------------------------------


def _known(
    what: str, table: Mapping[str, tuple[Function, frozenset[int]]], name: str, arguments: tuple[cel_syntax.Node, ...]
) -> Function:
    if name not in table:
        raise InvalidExpression(f"there is no {what} '{name}'; there are {', '.join(sorted(table))}")
    function, counts = table[name]
    if len(arguments) not in counts:
        counted = " or ".join(map(str, sorted(counts)))
        raise InvalidExpression(f"the {what} '{name}' takes {counted} arguments, not {len(arguments)}")
    return function
