"""No URL that is shown has a password in it, however badly it was written."""

from __future__ import annotations

import json
from importlib.metadata import PathDistribution
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.base.startup import install_hint
from asterism.base.text import clean, masked_url, masked_urls, request_url_problem, shorten_middle


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("postgresql://ann:pw@db:5432/fleet", "postgresql://ann:***@db:5432/fleet"),
        ("postgresql:/ann:pw@db", "postgresql:/ann:***@db"),
        ("postgresql:ann:pw@db", "postgresql:***@db"),
        ("postgresql//ann:pw@db", "postgresql//ann:***@db"),
        ("postgresql:\\\\ann:pw@db", "postgresql:\\\\ann:***@db"),
        ("//ann:pw@db", "//ann:***@db"),
        ("ann:pw@db/fleet", "ann:***@db/fleet"),
        ("postgresql://ann:p/w@db", "postgresql://ann:***@db"),
        ("postgresql://ann:p w@db", "postgresql://ann:***@db"),
        ("postgresql://ann:p@w@db", "postgresql://ann:***@db"),
        ("postgres:///fleet?user=ann&password=pw&port=1", "postgres:///fleet?user=ann&password=***&port=1"),
        ("host=db password=pw user=ann", "host=db password=*** user=ann"),
        ("https://token@forge/x", "https://forge/x"),
        ("https:/ann:pw@forge/x", "https:/forge/x"),
        ("HTTPS://ann:pw@forge", "HTTPS://forge"),
        ("https://api/x?access_token=pw&page=2", "https://api/x?access_token=***&page=2"),
        ("https://mirror/https://ann:pw@forge/x", "https://***@forge/x"),
        # what has no password stays as it is
        ("https://api/users/@me", "https://api/users/@me"),
        ("http://localhost:8080/a?b=c", "http://localhost:8080/a?b=c"),
        ("ssh://git@forge/x.git", "ssh://git@forge/x.git"),
        ("git@forge:org/x.git", "git@forge:org/x.git"),
        ("sqlite:////var/lib/fleet.db", "sqlite:////var/lib/fleet.db"),
        ("fleet.db", "fleet.db"),
    ],
)
def test_an_address_is_shown_without_its_password(written: str, shown: str) -> None:
    assert masked_url(written) == shown


def test_addresses_within_a_text_are_masked() -> None:
    said = "fatal: unable to access 'https://ann:pw@forge/x/', nor ssh://ann:pw@forge: gone"
    assert masked_urls(said) == "fatal: unable to access 'https://forge/x/', nor ssh://ann:***@forge: gone"


@given(
    scheme=st.sampled_from(["postgresql", "postgres", "https", "http", "ssh", "x"]),
    separator=st.sampled_from(["://", ":/", ":", ":///", "//"]),
    user=st.sampled_from(["ann", "", "a.n-n"]),
    before=st.text("/?#@: \\%a", max_size=3),
    host=st.sampled_from(["db", "db:5432/fleet", "[::1]/x", ""]),
)
def test_no_mistake_in_an_address_shows_the_password(
    scheme: str, separator: str, user: str, before: str, host: str
) -> None:
    assert "hunter2" not in masked_url(f"{scheme}{separator}{user}:{before}hunter2@{host}")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://example.org/x", None),
        ("http://{host}/x", None),
        ("{base}/x", None),
        ("htp://example.org", "a URL begins with http:// or https://, not 'htp://example.org'"),
        ("ftp://ann:secret@example.org", "a URL begins with http:// or https://, not 'ftp://ann:***@example.org'"),
        ("http:///x", "'http:///x' has no host"),
    ],
)
def test_a_url_to_which_nothing_can_be_sent_is_told(url: str, problem: str | None) -> None:
    assert request_url_problem(url) == problem


UNKNOWN = "install the extra 'http' of this package (in its checkout: pip install '.[http]')"


@pytest.mark.parametrize(
    ("record", "command"),
    [
        ({"url": "file:///home/ann/my%20work", "dir_info": {"editable": True}}, "-e '/home/ann/my work[http]'"),
        ({"url": "file:///srv/asterism", "dir_info": {}}, "'/srv/asterism[http]'"),
        (
            {"url": "https://example.org/asterism.git", "vcs_info": {"vcs": "git", "commit_id": "1234"}},
            "'asterism[http] @ git+https://example.org/asterism.git'",
        ),
        (
            {"url": "file:///srv/asterism-1-py3-none-any.whl", "archive_info": {}},
            "'asterism[http] @ file:///srv/asterism-1-py3-none-any.whl'",
        ),
    ],
)
def test_advice_on_an_extra_is_the_command_to_type(
    monkeypatch: pytest.MonkeyPatch, record: dict[str, Any], command: str
) -> None:
    monkeypatch.setattr("sys.executable", "/opt/venv/bin/python")
    monkeypatch.setattr(PathDistribution, "read_text", lambda self, name: json.dumps(record))
    assert install_hint("http") == f"install the extra 'http': /opt/venv/bin/python -m pip install {command}"


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"url": 7}', '{"url": "ssh://x", "dir_info": {}}'])
def test_advice_on_an_extra_names_no_package_of_an_index(monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    monkeypatch.setattr(PathDistribution, "read_text", lambda self, name: text)
    assert install_hint("http") == UNKNOWN


@given(st.text(), st.integers(0, 40))
def test_a_name_that_is_shortened_keeps_both_ends_and_fits(name: str, cells: int) -> None:
    from rich.cells import cell_len

    short = shorten_middle(name, cells)
    assert cell_len(short) <= cells
    if cell_len(clean(name)) <= cells:
        assert short == clean(name)


def test_names_that_differ_at_their_ends_stay_different() -> None:
    names = [f"a-rather-long-name-of-a-video-{number}.mp4" for number in range(10)]
    assert len({shorten_middle(name, 16) for name in names}) == 10
    assert shorten_middle("abcdefghijkl", 7) == "abc…jkl"
    assert shorten_middle("abcdefghijkl", 2) == "a…"
