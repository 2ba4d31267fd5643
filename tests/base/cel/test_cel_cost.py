"""No expression takes more time or memory than its steps allow, whatever it is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.base import expressions
from asterism.base.cel import cel_syntax
from asterism.base.cel.cel_functions import FUNCTIONS, METHODS
from asterism.base.cel.cel_program import compile_expression
from asterism.base.cel.cel_syntax import MACROS
from asterism.base.cel.cel_values import InvalidExpression, TooCostly
from tests.base.cel.cel_bombs import TEN, doubled, nested
from tests.base.cel.cel_child import NAMES, Child, child

BOMBS = {
    "nested macros": nested(9),
    "nested macros over data": "".join(f"result.items.all({name}, " for name in "abcd") + "d >= 0" + ")" * 4,
    "doubled text": doubled(),
    "doubled text of data": doubled("status"),
    "doubled list": doubled("[status]"),
    "shared lists": "[status]" + ".map(a, [a, a])" * 40,
    "shared maps": "[status]" + ".map(a, {'a': a, 'b': a})" * 40,
    "shared lists compared": f"[status]{'.map(a, [a, a])' * 40} == [status]{'.map(a, [a, a])' * 40}",
    "a large value many times": "result.items.map(x, result)",
    "pattern that is large": "result.words.exists(w, w.matches('((a{1,30}){1,30}){1,30}'))",
    "patterns from data": "result.items.exists(x, 'a'.matches(string(x) + '(a|b){1,900}c'))",
    "search at its worst": f"result.items.exists(x, result.text.contains('{'ab' * 49}c'))",
    "errors": "result.items.all(x, result.items.all(y, x.nothing || y.nothing))",
    "membership": "result.items.all(x, result.items.all(y, !(-1 in result.items)))",
    "times": "result.items.all(x, result.items.all(y, string(timestamp(x)) != ''))",
}
LONG = {
    "pattern that backtracks": "result.text.matches('(((a|b)+)+)+c$')",
    "sum": "+".join(["status"] * 400),
    "comparison": "<".join(["1"] * 1900),
    "conjunction": "&&".join(["true"] * 600),
    "condition": "status == '' ? 1 : " * 200 + "1",
    "fields": "result" + ".a" * 1900,
    "items": "result" + "[0]" * 1300,
    "macros": "result.items" + ".map(x,x)" * 400,
    "minus": "-" * 3900 + "1",
    "not": "!" * 3900 + "true",
    "list": "[" + "1," * 1900 + "]",
    "map": "{" + "1:2," * 900 + "}",
    "brackets": "(" * 1900 + "1" + ")" * 1900,
    "lists": "[" * 1900 + "]" * 1900,
    "open brackets": "(" * 3900,
    "calls": "size(" * 700 + "status" + ")" * 700,
    "quotes": "'''" * 1300,
    "quotes and escapes": "'''\\'" * 700,
    "digits": "1" * 3900,
    "decimals": "1." + "1" * 3900,
    "too long": "1+" * 100_000 + "1",
    "much too long": "(" * 1_000_000,
}


@pytest.fixture(scope="module")
def metered() -> Iterator[Child]:
    with child("metered") as process:
        yield process


# -- bombs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_refused_and_nothing_bursts(text: str, metered: Child) -> None:
    said = metered.evaluate(text)
    assert "steps" in said or "the pattern is too large" in said


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_long_and_deep_expressions_are_harmless(text: str, metered: Child) -> None:
    metered.evaluate(text)


SLOW_BOMBS = ("nested macros", "shared lists compared", "nested macros over data")


@pytest.mark.parametrize("name", ["doubled text", *(pytest.param(bomb, marks=pytest.mark.long) for bomb in SLOW_BOMBS)])
def test_without_the_meter_the_limits_end_the_process(name: str) -> None:
    with child("unmetered") as process, pytest.raises(AssertionError, match="ended with"):
        process.evaluate(BOMBS[name])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(nested(9), id="nested macros", marks=pytest.mark.long),
        pytest.param(BOMBS["doubled text"], id="doubled text", marks=pytest.mark.long),
    ],
)
def test_the_library_that_was_used_before_is_ended_by_the_limits(text: str) -> None:
    with child("library") as process, pytest.raises(AssertionError, match="ended with"):
        process.evaluate(text)


def test_what_is_too_costly_whatever_the_data_is_refused_by_the_check() -> None:
    for name in ("nested macros", "doubled text"):
        problem = expressions.check(BOMBS[name])
        assert "steps; use fewer nested or chained macros" in str(problem)


def test_a_refusal_is_remembered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setattr(
        expressions, "compile_expression", lambda text: compiled.append(text) or compile_expression(text)
    )
    text = nested(8)
    assert [expressions.check(text), expressions.check(text)] == [expressions.check(text)] * 2
    assert len(compiled) == 1


# -- steps -------------------------------------------------------------------------------------------------------------


def steps(text: str, names: object = NAMES) -> int:
    """How many steps an expression takes: the fewest that are enough."""
    program = compile_expression(text)
    low, high = 0, expressions.STEPS
    program.evaluate(names, high)  # type: ignore[arg-type]
    while high - low > 1:
        middle = (low + high) // 2
        try:
            program.evaluate(names, middle)  # type: ignore[arg-type]
            high = middle
        except TooCostly:
            low = middle
    return high


def test_steps_grow_with_the_work() -> None:
    single, two = (steps("data.map(x, x + 1)", {"data": [1] * many}) for many in (100, 200))
    assert two > 1.9 * single
    single, two = (steps("data + data == ''", {"data": "x" * many}) for many in (10_000, 20_000))
    assert two > 1.9 * single
    single, two = (steps("data.matches('[a-c]+d')", {"data": "x" * many}) for many in (100_000, 200_000))
    assert two > 1.9 * single


def test_a_part_of_large_data_is_selected_at_no_cost() -> None:
    large = {"result": {"rows": [{"id": number} for number in range(500_000)]}}
    assert steps("result.rows", large) < 10
    assert expressions.select("result.rows[499999].id", large) == 499_999
    assert expressions.select("result.rows", large) is large["result"]["rows"]


def test_the_steps_are_enough_for_ordinary_work() -> None:
    rows = {"result": [{"id": number, "name": f"row {number}", "score": number / 10} for number in range(5000)]}
    assert expressions.select("result.filter(row, row.score > 400.0).map(row, row.name).size()", rows) == 999
    assert expressions.select("result.exists(row, row.name == 'row 4999')", rows) is True
    assert expressions.select("result.all(row, row.name.startsWith('row'))", rows) is True


def test_a_refusal_is_not_passed_over_by_operators() -> None:
    for text in ("{} || true", "!({}) || true", "[1].exists(i, {} || i == 1)"):
        with pytest.raises(ValueError, match="steps"):
            expressions.select(text.replace("{}", BOMBS["nested macros over data"]), NAMES)


def test_the_steps_do_not_depend_on_what_was_evaluated_before() -> None:
    text = "result.words.exists(w, w.matches('x[0-9]{2,9}$'))"
    assert steps(text) == steps(text)


# -- every function, and any expression --------------------------------------------------------------------------------

VALUES = [
    "result",
    "result.items",
    "result.text",
    "result.map",
    "status",
    "x",
    "1.5e308",
    "'9' + status",
    "null",
    "b'ab'",
]
VALUES += ["duration('1h')", "timestamp('2024-01-01T00:00:00Z')", "result.text + result.text", "5u", "-1", "type(1)"]


FEW = 2000


def test_every_function_and_method_is_bounded(metered: Child) -> None:
    calls = [f"{name}({', '.join(arguments)})" for name, arguments in _calls(FUNCTIONS)]
    calls += [f"({of}).{name}({', '.join(arguments)})" for name, (of, *arguments) in _calls(METHODS, 1)]
    assert len(calls) > 300
    for call in calls:
        metered.evaluate(f"result.items.all(x, result.items.all(y, {call} == 'nothing' || true))", FEW)


def _calls(table: dict[str, tuple[object, frozenset[int]]], more: int = 0) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, (_, counts) in table.items():
        for count in counts:
            values = VALUES if count + more < 2 else VALUES[:6]
            for chosen in itertools.product(values, repeat=count + more):
                yield name, chosen


OPERATORS, SIMILAR = ("+", "%", "==", "<", "in", "&&"), ("-", "*", "/", "!=", "<=", ">", ">=", "||")


@pytest.mark.parametrize("operator", [*OPERATORS, *(pytest.param(sign, marks=pytest.mark.long) for sign in SIMILAR)])
def test_every_operator_is_bounded(operator: str, metered: Child) -> None:
    for left, right in itertools.product(VALUES, repeat=2):
        call = f"({left} {operator} {right})"
        metered.evaluate(f"result.items.all(x, result.items.all(y, {call} == 'nothing' || true))", FEW)


@given(st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,20}", fullmatch=True))
def test_a_function_that_is_not_in_the_tables_is_refused(name: str) -> None:
    for text, table in ((f"{name}(status)", FUNCTIONS), (f"status.{name}()", METHODS)):
        if name not in table and name not in MACROS and name != "has":
            with pytest.raises(InvalidExpression):
                compile_expression(text)


def test_the_functions_of_the_library_are_modelled_or_refused() -> None:
    """What it has beyond the tables, also where it is asked for it, is refused by the check."""
    from cel import stdlib

    extended = {name.rstrip("_") for name in dir(stdlib) if callable(getattr(stdlib, name)) and name[0] != "_"}
    assert len(extended) > 30
    for name in extended - set(FUNCTIONS):
        assert "there is no function" in str(expressions.check(f"{name}(status)"))
    for name in ("optional.of(1)", "optional.none()", "math.abs(1)", "cel.bind(x, 1, x)", "status.format([1])"):
        assert "there is no method" in str(expressions.check(name))


PATTERNS = ["(a|b)*c", "(a?){500}b", "((a{1,9}){1,9}){1,9}", "[^a]*$", "(?i)AB+", "^a", "(", "a{1000}", r"\\bword\\d+"]
atoms = st.one_of(
    st.sampled_from(["result.items", "result.text", "result.words", "result.map", "result.rows", "result", "status"]),
    st.sampled_from(["x", "y", "z", "1", "0", "2.5", "5u", "true", "false", "null", "''", "'ab'", "b'ab'", "[]", "{}"]),
    st.sampled_from(["9223372036854775807", "-1", TEN, "'" + "x" * 500 + "'", "[" + "1," * 300 + "]"]),
    st.sampled_from(["duration('1s')", "timestamp('2024-01-01T00:00:00Z')"]),
)
variables = st.sampled_from("xyz")
GROWTH = ["a + a", "[a, a]", "{'k': a}", "[a] + [a]", "string(a)"]


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def text(form: str, *parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.tuples(*parts).map(lambda drawn: form.format(*drawn))

    operators = st.sampled_from(["+", "-", "*", "/", "%", "==", "!=", "<", ">=", "in", "&&", "||"])
    macros = st.sampled_from([name for name in MACROS if name != "exists_one"])
    methods = st.sampled_from(["size()", "contains('b')", "startsWith(status)", "endsWith('b')", "getHours()"])
    return st.one_of(
        text("({} {} {})", inner, operators, inner),
        text("({} {} {} {} {})", inner, operators, inner, operators, inner),
        text("({} ? {} : {})", inner, inner, inner),
        text("({}).{}({}, {})", inner, macros, variables, inner),
        text("({}).map({}, {}, {})", inner, variables, inner, inner),
        text("[{}, {}]", inner, inner),
        text("{{'a': {}, 'b': {}}}", inner, inner),
        text("({})[{}]", inner, inner),
        text("({}).rows", inner),
        text("has(({}).items)", inner),
        text("{}({})", st.sampled_from([*FUNCTIONS][:-1]), inner),
        text("({}).{}", inner, methods),
        text("({}).matches('{}')", inner, st.sampled_from(PATTERNS)),
        text("({}).matches({})", inner, inner),
        text("{}{}", st.sampled_from("!-"), inner),
        st.tuples(
            inner, st.sampled_from(["a + a", "[a, a]", "{'k': a}", "[a] + [a]", "string(a)"]), st.integers(1, 60)
        ).map(lambda drawn: f"({drawn[0]}){f'.map(a, {drawn[1]})' * drawn[2]}"),
        st.tuples(inner, st.sampled_from(["+", "&&", "==", "*"]), st.integers(1, 50)).map(
            lambda drawn: f"({f' {drawn[1]} '.join([drawn[0]] * drawn[2])})"
        ),
        st.tuples(inner, st.integers(1, 40)).map(lambda drawn: "(" * drawn[1] + drawn[0] + ")" * drawn[1]),
        st.tuples(inner, st.integers(1, 8)).map(
            lambda drawn: (
                "".join(f"result.items.map(v{level}, " for level in range(drawn[1])) + drawn[0] + ")" * drawn[1]
            )
        ),
    )


any_expression = st.recursive(atoms, _grown, max_leaves=12)


@settings(max_examples=300)
@given(any_expression)
def test_any_expression_ends_within_the_limits(metered: Child, text: str) -> None:
    metered.evaluate(text)


@settings(max_examples=200)
@given(st.text(st.sampled_from("ab1.'\"\\()[]{}?:!-+*/%<>=&|, \nrxu#"), max_size=60))
def test_any_text_ends_within_the_limits(metered: Child, text: str) -> None:
    metered.evaluate(text)


def test_the_tree_is_as_deep_as_the_brackets() -> None:
    deepest = "(" * (cel_syntax.DEEPEST - 1) + "1" + ")" * (cel_syntax.DEEPEST - 1)
    assert expressions.check(deepest) is None
    assert "nested more than" in str(expressions.check(f"({deepest})"))


def test_patterns_that_are_written_down_are_paid_for_before_they_are_compiled() -> None:
    text = " || ".join(f"a.matches('b{{990}}{number}')" for number in range(10, 130))
    assert "its constants alone need more than" in str(expressions.check(text))


def test_selections_share_their_steps() -> None:
    select = expressions.Selections(100)
    assert select("result.size()", {"result": [1, 2]}) == 2
    assert select("result.size()", {"result": [1, 2, 3]}) == 3
    with pytest.raises(ValueError, match="steps"):
        [select("result.size()", {"result": []}) for _ in range(5)]
