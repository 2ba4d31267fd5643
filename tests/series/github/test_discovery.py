"""Which series an issue belongs to, which logins are one account, and what the tracking issue shows."""

from __future__ import annotations

import json

import pytest

from asterism.core.series.machine import Series
from asterism.series.github.discovery import Assignee, BadPattern, SeriesMatcher
from asterism.series.github.tracking_issue import body_of


def issue(title: str, *labels: str, number: int = 7, **more: object) -> dict[str, object]:
    return {"number": number, "title": title, "state": "open", "labels": [{"name": label} for label in labels], **more}


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (issue("RFC-093-02: a part"), ("RFC-093", 2)),
        (issue("RFC-093-010"), ("RFC-093", 10)),
        (issue("RFC-093: the whole"), None),
        (issue("see RFC-093-02"), None),
        (issue("rfc-093-02"), None),
        (issue("RFC-093-02x"), None),
        (issue(""), None),
        (issue("a lamp", "series:house"), ("house", 7)),
        (issue("a lamp", "bug", "series:house/12"), ("house", 12)),
        (issue("RFC-093-02: moved", "series:RFC-100"), ("RFC-100", 2)),
        (issue("RFC-093 Series State", "asterism-series"), None),
        (issue("RFC-093-02: a pull request", pull_request={}), None),
        (issue("a lamp", "series: "), None),
    ],
)
def test_titles_and_labels_name_series(form, expected):
    seen = SeriesMatcher().match(form)
    assert (seen and (seen.series, seen.micro)) == expected


def test_a_pattern_of_ones_own_finds_other_titles():
    matcher = SeriesMatcher(r"^\[(?P<series>\w+)\]")
    seen = matcher.match(issue("[alpha] something", number=42))
    assert seen is not None
    assert (seen.series, seen.micro) == ("alpha", 42)


@pytest.mark.parametrize("pattern", ["(", "x", "(?P<micro>\\d+)", "*"])
def test_a_pattern_that_cannot_be_used_is_refused(pattern):
    with pytest.raises(BadPattern):
        SeriesMatcher(pattern)


def test_a_bot_has_several_names():
    for login in ("copilot-swe-agent", "Copilot", "copilot-swe-agent[bot]", "@Copilot"):
        assignee = Assignee(login)
        assert assignee.is_bot
        assert assignee.is_assigned({"assignees": [{"login": "Copilot"}]})
        assert not assignee.is_assigned({"assignees": [{"login": "ada"}]})
    person = Assignee("Ada")
    assert not person.is_bot
    assert person.is_assigned({"assignees": [{"login": "ADA"}]})
    assert not person.is_assigned({"assignees": []})
    assert not person.is_assigned({"assignees": None})
    assert Assignee("renovate[bot]").is_bot


def test_what_people_write_cannot_break_the_view():
    series = Series("x --> `y` | @ada", queue=(2, 3)).pause(1.0, "ada", "-->\n```\n@everybody <b>")
    body = body_of(series)
    assert "@ada" not in body.split("```json")[0]
    assert body.count("-->") == 1 + body.split("```json")[1].count("-->")
    assert "<b>" not in body.split("```json")[0]
    assert json.loads(body.split("```json\n")[1].rsplit("```", 1)[0])["queue"] == [2, 3]
    assert body_of(series) == body


@pytest.mark.parametrize("waiting", [0, 2000, 2500, 8000, 50_000])
def test_a_view_fits_into_an_issue_however_many_wait(waiting):
    series = Series("X", active=1, queue=tuple(range(100_000, 100_000 + waiting)), revision=5)
    body = body_of(series.pause(1.0, "ada", "a reason " * 100))
    assert len(body) < 65_536
    assert "| active | #1 |" in body
    if waiting < 8001:
        document = json.loads(body.split("```json\n")[1].rsplit("```", 1)[0])
        assert document["queue"] == list(series.queue)
    else:
        assert f"and {waiting - 100} more" in body
        assert "asterism series status" in body


@pytest.mark.parametrize(
    ("title", "micro"), [("RFC-093-12: a", 12), ("RFC-093-b: letters", 7), ("RFC-093-²: small", 7), ("RFC-093-1b", 7)]
)
def test_a_micro_part_that_is_no_number_leaves_the_order_to_the_number_of_the_issue(title, micro):
    seen = SeriesMatcher(r"^(?P<series>RFC-\d+)-(?P<micro>[\w²]+)").match(issue(title))
    assert (seen and (seen.series, seen.micro)) == ("RFC-093", micro)


def test_a_required_label_counts_in_whatever_case():
    matcher = SeriesMatcher(required="Bot")
    assert matcher.match(issue("RFC-093-02: a part", "bug", "bOT")) is not None
    assert matcher.match(issue("RFC-093-02: a part", "bug")) is None


@pytest.mark.parametrize(
    ("label", "series"),
    [
        ("series:rfc-093/3", "RFC-093"),
        ("series:Rfc-093", "RFC-093"),
        ("series:RFC-093/3", "RFC-093"),
        ("series:house/1", "house"),
        ("series:team-a", "team-a"),
        ("series:Straße-7", "Straße-7"),
    ],
)
def test_a_label_in_other_case_names_the_series_that_titles_name(label, series):
    """To GitHub labels are the same in whatever case; titles are not."""
    member = SeriesMatcher().match(issue("another part", label))
    assert member is not None
    assert member.series == series


def test_a_label_is_taken_as_it_is_where_titles_may_be_in_any_case():
    matcher = SeriesMatcher(title=r"^(?P<series>\w+-\d+)-(?P<micro>\d+)")
    assert matcher.match(issue("another part", "series:rfc-093/3")).series == "rfc-093"
    matcher = SeriesMatcher(title=r"^\[(?P<series>[A-Z]+-\d+)\]")
    assert matcher.match(issue("another part", "series:rfc-093/3")).series == "rfc-093"
