"""The default title pattern: which titles name a series, which do not, and which are near misses."""

from __future__ import annotations

import re
import time
from string import ascii_lowercase, ascii_uppercase, digits

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.series.github.discovery import STANDARDS, TITLE_PATTERN, SeriesMatcher, mismatch_reason, similar_names
from tests.series.github.github_fixtures import opened, service_of
from tests.series.github.github_server import GitHubServer
from tests.series.github.github_world import World

BELONG = {
    "RFC-093-02: a part": ("RFC-093", 2),
    "RFC-093-02": ("RFC-093", 2),
    "RFC-093-010 more": ("RFC-093", 10),
    "RFC-093-02-01: a part of a part": ("RFC-093", 2),
    "RFC-093-02.1": ("RFC-093", 2),
    "  RFC-093-02: after spaces": ("RFC-093", 2),
    "OPS-7-1": ("OPS-7", 1),
    "RFC-2024-01: a number that could be a year": ("RFC-2024", 1),
    "RFC-093-2019b": None,
    # the form of the document that the series come from
    "Flow-RFC-009-01: Assignment Mutex": ("Flow-RFC-009", 1),
    "Flow-RFC-009-12": ("Flow-RFC-009", 12),
    "Game-Engine-RFC-3-4: x": ("Game-Engine-RFC-3", 4),
    "V2-RFC-3-4: x": ("V2-RFC-3", 4),
    # with the word micro
    "RFC-093: Micro 1 - a part": ("RFC-093", 1),
    "RFC-93: Micro 12": ("RFC-93", 12),
    "Flow-RFC-009: micro 02: a part": ("Flow-RFC-009", 2),
    "RFC-093 - Micro 3 - a part": ("RFC-093", 3),
    "RFC 093 Micro 4": ("RFC-093", 4),
    # in brackets
    "[RFC-051-02] a part": ("RFC-051", 2),
    "[RFC-051-02]: a part": ("RFC-051", 2),
    "[RFC-051-02]": ("RFC-051", 2),
    "[ RFC-051-02 ] a part": ("RFC-051", 2),
    "[Flow-RFC-051-02] a part": ("Flow-RFC-051", 2),
    "[RFC 051 - 02] a part": ("RFC-051", 2),
    # with spaces, and with the dashes that people and their keyboards write
    "RFC 050 - 01": ("RFC-050", 1),
    "RFC 050 - 01 a part": ("RFC-050", 1),
    "RFC 050 - 10 a part": ("RFC-050", 10),
    "RFC 050 - 01: a part": ("RFC-050", 1),
    "RFC 050-01 a part": ("RFC-050", 1),
    "RFC-050 - 01 a part": ("RFC-050", 1),
    "RFC  050  -  01": ("RFC-050", 1),
    "RFC 050 – 01: a part": ("RFC-050", 1),
    "RFC 050 — 01": ("RFC-050", 1),
    "RFC‑050": None,
    "RFC-050‑01: a part": ("RFC-050", 1),
    "RFC 123 - 10": ("RFC-123", 10),
    "RFC 123 - 10: a part": ("RFC-123", 10),
    "RFC 123 - 10 - a part": ("RFC-123", 10),
    "RFC 123 - 01 a part": ("RFC-123", 1),
}

DO_NOT = [
    "",
    "a question",
    "RFC-093",
    "RFC-093: the whole",
    "RFC 2119 compliance",
    "see RFC-093-02",
    "Fix RFC-093-02 for good",
    "[backend] RFC-093-02: x",
    "rfc-093-02",
    "Rfc-093-02",
    "RFC-093-02x",
    "RFC_093_02",
    "RFC-093/02",
    "RFC093-02",
    "RFC 093 02",
    "(RFC-093-02) x",
    "[RFC-093-02 x",
    "[RFC-093] 02: x",
    "RFC-093-²",
    "RFC-093-٣",
    "RFC-093: Micro one",
    "RFC-093: Microservice 2",
    "ISO-8859: Micro 1",
    # sentences
    "RFC 2119 - 10 reasons to write MUST",
    "RFC 7231 - 3 methods are missing",
    "RFC 2616 - 1999 edition",
    # dates, years, versions
    "REL-2024-01-15: notes",
    "REL-2024-01-15",
    "2024-01-02: notes",
    "COVID-19-2020",
    "v1-2-3",
    "1-2-3",
    "A4-B5-01",
    # standards
    "ISO-8859-01: read it",
    "ISO-8859-1",
    "ISO 8859 - 01",
    "ISO-8601-2 dates",
    "[ISO-8859-01] x",
    "Draft-ISO-8859-01",
    "CVE-2024-12345: a hole",
    "CWE-79-1",
    "UTF-8-1",
    "SHA-256-1",
    "IEEE-802-11",
    "EN-301-549",
    "TLS-1-3: switch it on",
]


MATCHER = SeriesMatcher()


def match_title(title: str) -> tuple[str, int] | None:
    seen = MATCHER.match({"number": 77, "title": title, "labels": []})
    return (seen.series, seen.micro) if seen else None


@pytest.mark.parametrize(("title", "expected"), BELONG.items())
def test_titles_that_name_a_series(title, expected):
    assert match_title(title) == expected


@pytest.mark.parametrize("title", DO_NOT)
def test_titles_that_only_look_like_it(title):
    assert match_title(title) is None


codes = st.text(ascii_uppercase, min_size=1, max_size=6).filter(lambda code: code not in STANDARDS)
capitals, letters = st.sampled_from(ascii_uppercase), st.text(ascii_lowercase, min_size=1, max_size=6)
prefixes = st.lists(st.tuples(capitals, letters).map("".join), max_size=2)
numbers = st.text(digits, min_size=1, max_size=3).map(lambda text: f"0{text}")
rests = st.one_of(st.just(""), st.text(max_size=30).map(lambda text: f": {text}"))


@given(prefixes, codes, numbers, st.integers(1, 999), rests)
def test_every_form_of_one_title_names_the_same_series(words, code, number, micro, rest):
    prefix = "".join(f"{word}-" for word in words)
    expected = f"{prefix}{code}-{number}", micro
    for form in (
        "{}{}-{}-{}",
        "[{}{}-{}-{}]",
        "{}{} {} - {:02}",
        "{}{}-{} – {:02}",
        "[{}{} {} - {:02}]",
        "  {}{}-{}-{:03}",
    ):
        assert match_title(form.format(prefix, code, number, micro) + rest) == expected


@given(st.sampled_from(STANDARDS), st.integers(0, 99999), st.integers(0, 99999), rests)
def test_no_standard_is_a_series(code, number, part, rest):
    for form in ("{}-{}-{}", "[{}-{}-{}]", "{} {} - {}", "Draft-{}-{}-{}"):
        title = form.format(code, number, part) + rest
        assert match_title(title) is None
        assert "standard" in (mismatch_reason(title, re.compile(TITLE_PATTERN), ()) or "")


@given(st.text(max_size=80), st.sampled_from(["", "RFC-093", "rfc 1 - 2", "[RFC-1-2", "ISO-1-"]))
def test_no_title_breaks_the_judge(text, beginning):
    title = beginning + text
    seen, why = match_title(title), mismatch_reason(title, re.compile(TITLE_PATTERN), {"RFC-093"})
    if seen is not None:
        name, micro = seen
        assert re.fullmatch(r"(?:[A-Z][A-Za-z0-9]*-)*[A-Z]+-[0-9]+", name)
        assert f"{micro}" in title
    assert why is None or why
    similar_names([title])


@pytest.mark.parametrize("piece", ["A-", "[", "RFC-1", "RFC 1 - ", "RFC 050 -", " ", "0", "Ab-9"])
def test_no_title_takes_long(piece):
    """GitHub takes 256 letters; a pattern that backtracks would not end for a hundred."""
    began = time.process_time()
    for title in (piece * 2000, piece * 2000 + "RFC-1-1", "RFC-1-1 " + piece * 2000):
        match_title(title)
        mismatch_reason(title, re.compile(TITLE_PATTERN), ())
    assert time.process_time() - began < 5.0


@pytest.mark.parametrize(
    ("title", "why"),
    [
        ("rfc-093-02: x", "lower case"),
        ("Rfc-093-02: x", "lower case"),
        ("see RFC-093-02", "beginning"),
        ("[backend] RFC-093-02: x", "beginning"),
        ("(see [RFC-093-02])", "beginning"),
        ("RFC-093: the whole", "no micro number"),
        ("[RFC-093] the whole", "no micro number"),
        ("RFC 093: the whole", "no micro number"),
        ("RFC_093_02", "not written like"),
        ("RFC093-02", "not written like"),
        ("RFC-093/02", "not written like"),
        ("RFC 093 02", "not written like"),
        ("(RFC-093-02) x", "not written like"),
        ("RFC-093-02x", "not written like"),
        ("RFC 2119 - 10 reasons", "not written like"),
        ("ISO-8859-01", "ISO is the name of a standard"),
        ("RFC-100: another whole", None),
        ("a question", None),
        ("rfc_093_02", "not written like"),
        ("version 1.2", None),
        ("version_1_2", None),
        ("Fix #12-13", None),
        ("2024-01-02", None),
        ("", None),
    ],
)
def test_why_a_title_that_looks_like_one_names_no_series(title, why):
    said = mismatch_reason(title, re.compile(TITLE_PATTERN), {"RFC-093"})
    assert (said is None) if why is None else (why in (said or "")), said


def test_near_misses_of_a_pattern_of_ones_own():
    pattern = re.compile(r"^(?P<series>TEAM [A-Z])/(?P<micro>\d+)")
    assert mismatch_reason("team a/1", pattern, ()) == "its capitals are written in lower case"
    assert mismatch_reason("for TEAM A/1", pattern, ()) == "the name is not at the beginning of the title"
    assert mismatch_reason("RFC_093_02", pattern, ()) is None  # the forms of others are none of its business
    assert SeriesMatcher(pattern.pattern).match({"number": 1, "title": "TEAM A/1"}).series == "TEAM A"


def test_a_label_in_small_letters_names_the_series_of_a_title_with_a_prefix():
    for label in ("series:flow-rfc-009/2", "series:Flow-RFC-009/2"):
        seen = MATCHER.match({"number": 1, "title": "x", "labels": [{"name": label}]})
        assert (seen.series, seen.micro) == ("Flow-RFC-009", 2)


@pytest.mark.parametrize(
    ("names", "alike"),
    [
        (["RFC-93", "RFC-093", "OPS-1"], [["RFC-093", "RFC-93"]]),
        (["RFC-009", "Flow-RFC-009"], [["Flow-RFC-009", "RFC-009"]]),
        (["rfc-009", "RFC-009"], [["RFC-009", "rfc-009"]]),
        (["RFC-009", "RFC-090", "house", "RFC"], []),
    ],
)
def test_names_that_may_be_meant_for_one_series(names, alike):
    assert similar_names(names) == alike


async def test_every_form_is_of_one_series_when_it_is_synced():
    world = World()
    for title in ("[RFC-051-02] b", "RFC 051 - 03 c", "RFC-051-01: a", "Flow-RFC-009-02: e", "Flow-RFC-009-01: d"):
        world.add_issue(title)

    async def scene(server: GitHubServer) -> dict[str, list[int]]:
        register = opened(server)
        report = await service_of(register).sync()
        await register.close()
        return {
            series_report.name: [series_report.state.active, *series_report.state.queue]
            for series_report in report.series
        }

    with GitHubServer(world) as server:
        assert await scene(server) == {"Flow-RFC-009": [5, 4], "RFC-051": [3, 1, 2]}
        assert server.call(lambda world: [issue.number for issue in world.listed() if issue.assignees]) == [5, 3]
