"""Invitations: encoding, parsing, and no secret in an error message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.fleet.one_time_code import new_secret, secret_hash
from asterism.peers.invitations import InvalidInvitation, Invitation, parse_invitation, peer_url

FINGERPRINT = "ab" * 32
TOKEN = new_secret()
LINE = f"https://kitchen-pc:7420/#kitchen-pc.{TOKEN}.{FINGERPRINT}"


def test_an_invitation_is_one_line() -> None:
    assert Invitation("https://kitchen-pc:7420", "kitchen-pc", TOKEN, FINGERPRINT).line() == LINE
    assert parse_invitation(LINE) == Invitation("https://kitchen-pc:7420", "kitchen-pc", TOKEN, FINGERPRINT)
    assert parse_invitation(f"  {LINE}\n") == parse_invitation(LINE)
    assert parse_invitation(f"asterism peer accept '{LINE}'") == parse_invitation(LINE)


@given(name=st.text(st.characters(codec="utf-8"), min_size=1, max_size=40))
def test_an_invitation_round_trips_with_any_name(name: str) -> None:
    invitation = Invitation("https://[::1]:7420", name, TOKEN, FINGERPRINT)
    line = invitation.line()
    assert parse_invitation(line) == invitation
    assert line.isascii()
    assert line.isprintable()
    assert " " not in line


def test_tokens_are_unique_and_not_in_their_hash() -> None:
    assert len({new_secret() for _ in range(100)}) == 100
    assert secret_hash(TOKEN) == secret_hash(TOKEN) != secret_hash(new_secret())
    assert TOKEN not in secret_hash(TOKEN)


def test_a_token_is_hidden_in_repr() -> None:
    assert TOKEN not in repr(parse_invitation(LINE))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "not an invitation"),
        ("kitchen-pc", "not an invitation"),
        ("https://kitchen-pc:7420", "not an invitation"),
        ("https://kitchen-pc:7420/#", "not an invitation"),
        (LINE.replace("#kitchen-pc.", "#"), "not an invitation"),
        (LINE[:-1], "damaged"),
        (LINE[:-1] + "G", "damaged"),
        (LINE.replace(TOKEN, TOKEN[:-1]), "damaged"),
        (LINE.replace(TOKEN, "ä" * 43), "damaged"),
        (LINE.replace("#kitchen-pc", "#%ff"), "damaged"),
        (LINE.replace("https", "http"), "begin with https://"),
        (LINE.replace("kitchen-pc:7420", ""), "has no valid host"),
        (LINE.replace("kitchen-pc:7420", "kitchen pc:7420"), "not an invitation"),
        (LINE.replace("kitchen-pc:7420", "kitchen!pc:7420"), "has no valid host"),
        (LINE.replace("7420", "99999"), "not a valid address"),
        (LINE.replace("kitchen-pc:7420/", "kitchen-pc:7420/api/"), "a host and a port only"),
        (LINE.replace("kitchen-pc:7420/", "ann:secret@kitchen-pc:7420/"), "a host and a port only"),
    ],
)
def test_an_invalid_invitation_is_refused_without_its_secret(line: str, why: str) -> None:
    with pytest.raises(InvalidInvitation, match=why) as error:
        parse_invitation(line)
    assert TOKEN not in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("https://kitchen-pc:7420", "https://kitchen-pc:7420"),
        ("https://kitchen-pc:7420/", "https://kitchen-pc:7420"),
        ("HTTPS://Kitchen-PC", "https://kitchen-pc:7420"),
        (" https://10.0.0.7:443/ ", "https://10.0.0.7:443"),
        ("https://[fe80::1]:7420", "https://[fe80::1]:7420"),
    ],
)
def test_addresses_are_normalised(text: str, address: str) -> None:
    assert peer_url(text) == address


@pytest.mark.parametrize("text", ["kitchen-pc", "http://kitchen-pc:7420", "ftp://x", "https://", "https://[::1", "://"])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidInvitation):
        peer_url(text)
