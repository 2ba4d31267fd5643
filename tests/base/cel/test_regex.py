"""Regular expressions: what they match, and that others agree."""

from __future__ import annotations

import re

import cel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.base.cel.cel_values import Evaluation, InvalidExpression
from asterism.base.cel.regex import matches, metered_pattern


def is_found(pattern: str, text: str) -> bool:
    return matches(Evaluation({}, 0, 100_000), text, pattern)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("abc", "xxabcxx", "ab"),
        ("", "anything", None),
        ("^abc$", "abc", "abcd"),
        ("a.c", "abc", "a\nc"),
        ("(?s)a.c", "a\nc", "ac"),
        ("^b", "b\na", "a\nb"),
        ("(?m)^b$", "a\nb\nc", "ab"),
        ("a*b", "b", "a"),
        ("a+b", "aab", "b"),
        ("^a?b$", "ab", "aab"),
        ("^a{2,3}$", "aaa", "aaaa"),
        ("^a{2}$", "aa", "aaa"),
        ("^a{2,}$", "aaaaa", "a"),
        ("^(ab|cd)+$", "abcdab", "abc"),
        ("^(?:a|b|)c$", "c", "dc"),
        ("^(?P<name>a)(?<other>b)$", "ab", "a"),
        ("[a-c]+[^a-c]", "abd", "abc"),
        ("^[]a-]+$", "]a-", "b"),
        ("^[^]]$", "a", "]"),
        (r"^\d{4}-\d\d$", "2024-01", "24-1"),
        (r"^[\w.]+@[\w.]+$", "ann@home.net", "ann home"),
        (r"^[\D]$", "a", "5"),
        (r"^\S\s\W$", "a !", "a b"),
        (r"\bcat\b", "a cat!", "concatenate"),
        (r"\Bcat\B", "concatenate", "cat"),
        (r"\Aa\.b\z", "a.b", "axb"),
        ("(?i)HeLLo", "hEllO", "help"),
        ("(?i:a)b", "Ab", "AB"),
        ("(?i)[^a]", "b", "A"),
        ("a(?i)b", "aB", "Ab"),
        ("^[[:alpha:]_]+[[:digit:]]$", "ab_1", "1a"),
        (r"\x41\x{e9}\n", "Aé\n", "Ae\n"),
        ("^(a*)*$", "aaaa", "b"),
        ("^(a|b)*?c$", "abbac", "abba"),
        ("a{,2}", "a{,2}", "aa"),
        ("x{a}", "x{a}", "xa"),
        ("é+", "caféé", "cafe"),
        (r"^\w\d\s$", "a1 ", "é1 "),
        (r"^\d$", "7", "\u0667"),
        (r"^[\W]+$", "é-", "a"),
        (r"^[\S]$", "\v", " "),
        (r"\bcafé\b", "café" + "s", "café"),
        ("^[a&&b~~[-]+$", "&~[-ab", "c"),
        ("^[+--]+$", "+,-", "."),
        (r"^\<\>\-\ $", "<>- ", "x"),
        ("^.$", "\ud800", "ab"),
        ("word.*end", "a word and the end", "a word and the en"),
    ],
)
def test_a_pattern_matches_what_it_says(pattern: str, yes: str, no: str | None) -> None:
    assert is_found(pattern, yes)
    assert no is None or not is_found(pattern, no)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "unclosed group"),
        (")", "unopened group"),
        ("*a", "repetition operator missing expression"),
        ("a**", "a repetition of a repetition"),
        ("[^]a", "a set of characters that does not end"),
        ("a{3,2}", "invalid repetition count range"),
        ("a{1001}", "a repetition is from 0 to 1,000"),
        ("[a", "a set of characters that does not end"),
        ("[b-a]", "invalid character class range"),
        ("[[:word2:]]", "there is no class"),
        (r"\1", r"the escape \1 is not supported"),
        (r"\pL", r"the escape \p is not supported"),
        ("\\", "the escape"),
        ("(?=a)", "a kind of group that is not supported"),
        ("(?<!a)b", "a kind of group that is not supported"),
        ("((a{100}){100}){100}", "the pattern is too large"),
        ("(((){1000}){1000}){1000}", "the pattern is too large"),
        ("(" * 300 + ")" * 300, "nested"),
        ("a" * 1001, "a pattern has at most 1,000 characters"),
    ],
)
def test_a_pattern_that_is_not_valid_says_why(pattern: str, why: str) -> None:
    with pytest.raises(InvalidExpression) as refusal:
        metered_pattern(Evaluation({}, 0, 1_000_000), pattern)
    assert why in str(refusal.value)


def test_a_prefix_is_found_wherever_it_is() -> None:
    for before in (0, 1, 2046, 2047, 2048, 2049, 5000):
        assert is_found("abc[0-9]", "x" * before + "abc5")
        assert not is_found("abc[0-9]", "x" * before + "abcd")


def test_what_makes_others_try_for_ever_is_over_at_once() -> None:
    assert not is_found("(a|a)*b", "a" * 2000)
    assert not is_found("(a*)*b", "a" * 2000)
    assert not is_found("(a?){20}a{20}b", "a" * 200)


pieces = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", "^", "$", r"\b", "c"])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeats = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,1}", "*?", "+?"])
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda parts: f"(?:{parts[0]}|{parts[1]})"),
        st.tuples(inner, repeats).map(lambda parts: f"({parts[0]}){parts[1]}"),
    )


@settings(max_examples=500)
@given(st.recursive(pieces, _larger, max_leaves=8), st.text("abc1 \n", max_size=8))
def test_others_find_the_same(pattern: str, text: str) -> None:
    """Python's ``re``, with the end of a text as RE2 has it; and the library, which has Unicode classes."""
    expected = re.search(pattern.replace("$", r"\Z"), text, re.ASCII) is not None
    assert is_found(pattern, text) == expected
    names = {"text": text, "pattern": pattern}
    assert cel.compile("text.matches(pattern)").execute(names) == expected
