"""The mask finds a secret however it is written, spares what only looks like one, and leaves data as it is."""

from __future__ import annotations

import asyncio
import html
import json
import logging
import re
import shlex
import string
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from asterism import Constellation, LocalDevice, Orchestrator, Task
from asterism.base import secret_mask as masks
from asterism.base.secret_mask import (
    HIDDEN,
    MASKED_ANYWHERE,
    SHORTEST_MASKED,
    Mask,
    environment_mask,
    named_like_a_secret,
    secret_names,
)
from asterism.core.errors import RecordedError
from tests.orchestrator.orchestrator_scenes import independent

# -- every way of writing it -------------------------------------------------------------------------------------------


def lower(text: str) -> str:
    return re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), text)


def escaped(text: str) -> str:
    return json.dumps(text)[1:-1]


WAYS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "percent": quote,
    "percent, all": lambda text: quote(text, safe=""),
    "percent, lower case": lambda text: lower(quote(text, safe="")),
    "percent, as browsers do": lambda text: quote(text, safe="!'()*"),
    "form": quote_plus,
    "form, lower case": lambda text: lower(quote_plus(text)),
    "json": escaped,
    "json, capital digits": lambda text: re.sub(r"\\u[0-9a-f]{4}", lambda it: "\\u" + it[0][2:].upper(), escaped(text)),
    "json, not only ASCII": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "json, escaped slash": lambda text: json.dumps(text, ensure_ascii=False)[1:-1].replace("/", r"\/"),
    "json in json": lambda text: escaped(escaped(text)),
    "repr": lambda text: repr(text)[1:-1],
    "ascii": lambda text: ascii(text)[1:-1],
    "repr of bytes": lambda text: repr(text.encode())[2:-1],
    "html": html.escape,
    "html, not quotes": lambda text: html.escape(text, quote=False),
    "html, references": lambda text: text.encode("ascii", "xmlcharrefreplace").decode(),
    "html, hexadecimal": lambda text: "".join(c if c.isascii() and c.isalnum() else f"&#x{ord(c):x};" for c in text),
    "shell": shlex.quote,
    "shell, backslashes": lambda text: re.sub(r"([^A-Za-z0-9\n])", r"\\\1", text),
    "base64": lambda text: b64encode(text.encode()).decode(),
    "base64, in the middle": lambda text: b64encode(f"user:{text}!".encode()).decode(),
    "base64, for addresses": lambda text: urlsafe_b64encode(b"?" + text.encode()).decode(),
}

LETTERS = st.characters(codec="utf-8", exclude_characters="[]", exclude_categories=("Cs",))
SECRETS = st.text(LETTERS | st.sampled_from("/\"'\\<>&%+ =$`\n\täüß€😀"), min_size=MASKED_ANYWHERE, max_size=40)


def spoken(value: str) -> bool:
    """Whether a value has more than blanks, which every text contains."""
    return value.strip() == value and len(value) >= MASKED_ANYWHERE and len(set(value)) > 2 and HIDDEN not in value


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=150, deadline=None)
@given(SECRETS.filter(spoken), st.text("xyz .,;:\n", max_size=10), st.text("xyz .,;:\n", max_size=10))
@example("пароль-ключ/ё", "", "")
@example('a"b/c\\d\\\\e&f', "x", "x")
@example('it\'s "mine" & <yours>', "", " x")
@example("😀 emoji/secret\n2", "", "")
@example("ends with'", "", "")
@example("ends with&", "", "")
@example("0000001Ã", "", "")
def test_masked_text_never_holds_a_secret_in_any_way_of_writing(way: str, secret: str, before: str, after: str) -> None:
    written = WAYS[way](secret)
    separator = " " if way.startswith("base64") else ""
    shown = Mask({"TOKEN": secret}).text(before + separator + written + separator + after)
    assert HIDDEN in shown
    assert written not in shown
    assert secret not in shown
    around = len(before + after) + 2 * len(separator)
    assert len(shown.replace(HIDDEN, "")) <= around + 2  # and nothing of it is left but quotes or a backslash


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.text("abc", min_size=MASKED_ANYWHERE, max_size=12), min_size=1, max_size=3),
    st.text("abc ", max_size=80),
)
def test_no_secret_is_left_where_several_overlap(secrets: list[str], text: str) -> None:
    shown = Mask({str(number): value for number, value in enumerate(secrets)}).text(text)
    outside = shown.split(HIDDEN)
    assert not [value for value in secrets if any(value in part for part in outside)]
    covered = [any(text.startswith(value, at) for value in secrets) for at in range(len(text))]
    assert (HIDDEN in shown) is any(covered)


def test_overlapping_secrets_are_masked_as_one() -> None:
    both = Mask({"A": "abcdefgh", "B": "efghijkl"})
    assert both.text("-abcdefghijkl-") == "-[secret]-"
    assert both.text("abcdefghabcdefgh") == "[secret][secret]"


def test_each_line_of_a_secret_is_one() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhki\nG9w0BAQEFAASCBKcwgg\n-----END KEY-----\n"
    shown = Mask({"KEY": key}).text(f"could not load\nMIIEvQIBADANBgkqhki\nand {key.strip()}")
    assert shown == "could not load\n[secret]\nand [secret]"


def test_many_backslashes_take_no_time() -> None:
    mask = Mask({"A": "\\" * 40 + '"' + "\\" * 40 + "x"})
    assert mask.text("\\" * 5000) == "\\" * 5000
    assert mask.text("\\" * 80 + '"' + "\\" * 80 + "x") == HIDDEN


# -- what is not a secret ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", "1", "on", "v1."])
def test_a_very_short_value_spoils_no_text(value: str) -> None:
    text = "v1.1 is on: 1 of 11"
    shown = Mask({"A": value[: SHORTEST_MASKED - 1]}).text(text)
    assert shown == text


def test_a_short_value_is_masked_as_a_whole_word_only() -> None:
    mask = Mask({"PIN": "8675"})
    assert mask.text('pin=8675, (8675) 86751 x8675 "8675"') == 'pin=[secret], ([secret]) 86751 x8675 "[secret]"'
    assert [*Mask({"A": "123", "B": "1234567", "C": "12345678"}).warnings()] == [
        "the secret 'A' has only 3 characters and is not masked in text; use one of 8 or more",
        "the secret 'B' has only 7 characters and is masked only where it is a whole word; use one of 8 or more",
    ]


def test_what_only_looks_like_an_encoding_is_left_alone() -> None:
    mask = Mask({"A": "s3cr3t/value"})
    for text in ("s3cr3t%2Evalue", "s3cr3t&amp;value", "s3cr3tvalue", "S3CR3T/VALUE", "s3cr3t\\u002evalue"):
        assert mask.text(text) == text


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *(
            (name, True)
            for name in ("GITHUB_TOKEN", "TOKEN", "db_password", "API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_SECRET")
        ),
        *((name, False) for name in ("PATH", "TOKEN_FILE", "KEYBOARD", "MONKEY", "SSH_AUTH_SOCK", "TOKENS")),
    ],
)
def test_variables_are_secrets_by_what_they_are_called(name: str, is_one: bool) -> None:
    assert named_like_a_secret(name) is is_one


def test_a_variable_that_is_called_a_secret_is_masked_if_it_is_no_ordinary_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "0123456789abcdef")
    monkeypatch.setenv("OTHER_TOKEN", "test")
    monkeypatch.setenv("LISTED", "listed value")
    said = "0123456789abcdef is a test of a listed value"
    assert environment_mask(()).text(said) == "[secret] is a test of a listed value"
    assert (
        environment_mask(["OTHER_TOKEN"], lambda name: name == "LISTED").text(said)
        == "[secret] is a [secret] of a [secret]"
    )


def test_names_of_secrets_are_found_however_deep() -> None:
    assert sorted(
        secret_names([{"a": {"secret": "A"}}, ({"secret": "B"}, {"secret": 1}), {"secret": "C", "x": 1}])
    ) == ["A", "B"]


# -- errors ------------------------------------------------------------------------------------------------------------

VALUE = "s3cr3t-value"


class Talkative(Exception):
    """Makes its message from something that is neither an argument nor an attribute."""

    def __init__(self, said: str) -> None:
        super().__init__()
        self._say = lambda: said

    def __str__(self) -> str:
        return f"I was told {self._say()}"


def masked_error(error: BaseException) -> BaseException:
    try:
        with Mask({"TOKEN": VALUE}):
            raise error
    except (Exception, SystemExit) as masked:
        return masked


@pytest.mark.parametrize(
    "error",
    [
        ValueError(f"wrong {VALUE}"),
        KeyError(VALUE),
        FileNotFoundError(2, "No such file", f"/home/{VALUE}"),
        json.JSONDecodeError("bad", f'{{"{VALUE}"', 0),
        SystemExit(f"cannot log in with {VALUE}"),
        ExceptionGroup("several", [ValueError(VALUE), OSError(2, "no", VALUE)]),
        Talkative(VALUE),
        UnicodeEncodeError("ascii", VALUE, 0, 1, f"not {VALUE}"),
    ],
)
def test_no_error_shows_a_secret(error: BaseException) -> None:
    shown = masked_error(error)
    assert VALUE not in f"{shown} {shown!r}"
    assert type(shown) in (type(error), RecordedError)


def test_an_error_without_a_secret_is_left_as_it_is() -> None:
    error = ValueError("nothing to hide", {"a": 1})
    error.__cause__ = KeyError("why")
    assert masked_error(error) is error
    assert error.args == ("nothing to hide", {"a": 1})
    assert isinstance(error.__cause__, KeyError)


def test_an_error_that_holds_itself_is_masked() -> None:
    loop: list[Any] = [VALUE]
    loop.append(loop)
    shown = masked_error(ValueError(loop))
    assert VALUE not in f"{shown} {shown!r}"


# -- plans in this process ---------------------------------------------------------------------------------------------

EXPRESSIONS = [
    "{'a': 1}[result]",
    "duration(result)",
    "result.matches('(' + result)",
    "int(result)",
    "timestamp(result)",
]
"""Each fails, and its error tells what it was given."""


def execute(plan: Constellation) -> Any:
    return asyncio.run(Orchestrator([LocalDevice("here")]).run(plan))


def all_text_of(result: Any) -> str:
    errors = [f"{node.error} {node.error!r} {node.reason}" for node in result.plan.nodes.values()]
    return "\n".join([*map(str, result.story()), *errors, json.dumps(result.plan.to_json(), default=str)])


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_that_fails_tells_no_secret(
    expression: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MY_VALUE", VALUE)
    plan = Constellation("p")
    plan.add(Task("first", shell="echo {}", env={"T": {"secret": "MY_VALUE"}}))
    plan.add(Task("says", shell='echo "$T"', env={"T": {"secret": "MY_VALUE"}}))
    select = {"from": "says", "select": expression}
    plan.add(Task("by-input", argv=["true"], inputs={"x": select, "t": {"secret": "MY_VALUE"}}), "says")
    plan.add(Task("by-env", argv=["true"], env={"X": select}), "says")  # which refers to no secret itself
    plan.add(Task("by-http", http={"url": "http://127.0.0.1:1/", "headers": {"X": select}}), "says")
    plan.add(Task("by-when", argv=["true"]), after={"says": {"when": f"{expression} == 1"}})
    with caplog.at_level(logging.DEBUG):
        result = execute(plan)
    assert result["says"].value == VALUE  # it is data: the next task needs it as it is
    recorded = all_text_of(result).replace(json.dumps(VALUE), "")  # but for that
    assert VALUE not in recorded + caplog.text
    assert {name: str(result[name].status) for name in ("by-input", "by-env", "by-http", "by-when")} == {
        "by-input": "failed",
        "by-env": "failed",
        "by-http": "failed",
        "by-when": "cancelled",
    }


def test_the_story_of_a_task_that_prints_the_secret_of_another_does_not_hold_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_VALUE", VALUE)
    result = execute(
        independent(
            Task("spills", shell='echo "bad $MY_VALUE" >&2; exit 1'),
            Task("names", argv=["true"], env={"T": {"secret": "MY_VALUE"}}),
        )
    )
    assert str(result["spills"].error) == "the command exited with 1: bad [secret]"
    assert VALUE not in all_text_of(result)


@settings(max_examples=20, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12))
@example("1")
def test_data_that_flows_is_the_same_to_the_byte(value: str) -> None:
    assume(value.strip() == value)
    seen: list[Any] = []
    data = {"v1.1": [f"v{value}.{value}", value, {"deep": value}], value: 1}
    plan = Constellation("p")
    plan.add(Task("gives", call=lambda token: data, inputs={"token": {"secret": "MY_VALUE"}}))
    plan.add(
        Task("takes", call=lambda gives, token: seen.append((gives, token)), inputs={"token": {"secret": "MY_VALUE"}}),
        "gives",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MY_VALUE", value)
        execute(plan)
    assert seen == [(data, value)]


def test_a_short_secret_is_warned_of_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("PIN", "1234")
    tasks = [Task(name, argv=["true"], env={"PIN": {"secret": "PIN"}}) for name in "ab"]
    execute(independent(*tasks))
    assert caplog.text.count("the secret 'PIN' has only 4 characters") == 1


def test_rows_of_quotes_are_looked_through_in_a_moment() -> None:
    """One quote may be written as three signs, which are three quotes as well: in all the ways to split a row of them
    the search would never end."""
    quotes = Mask({"ODD": "'" * 20 + "b"})
    assert quotes.text("'\\''" * 2000) == "'\\''" * 2000
    assert quotes.text(f"a {shlex.quote(quotes.values['ODD'])} c") == f"a '{HIDDEN}' c"


# -- without the safeguards --------------------------------------------------------------------------------------------


def test_without_the_mask_an_error_tells_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(value: str) -> None:
        raise ValueError(f"{value} is not accepted")

    monkeypatch.setenv("MY_VALUE", VALUE)
    plan = independent(Task("a", broken, inputs={"value": {"secret": "MY_VALUE"}}))
    assert VALUE not in str(execute(plan)["a"].error)
    monkeypatch.setattr(Mask, "error", lambda self, error: error)
    plan = independent(Task("a", broken, inputs={"value": {"secret": "MY_VALUE"}}))
    assert VALUE in str(execute(plan)["a"].error)


def test_without_a_shortest_length_versions_are_spoilt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "SHORTEST_MASKED", 1)
    monkeypatch.setattr(masks, "MASKED_ANYWHERE", 1)
    masks._pattern_of.cache_clear()
    assert Mask({"PIN": "1"}).text("v1.1") == "v[secret].[secret]"
    masks._pattern_of.cache_clear()


def test_the_signs_that_are_tried_are_those_of_every_encoding() -> None:
    """No sign of ASCII is forgotten: each is found in every way of writing it."""
    for sign in string.punctuation + " \n\t":
        secret = f"head{sign}tail{sign}end"
        for way, write in WAYS.items():
            assert HIDDEN in Mask({"A": secret}).text(f" {write(secret)} "), (way, sign)
