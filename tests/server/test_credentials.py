"""Tokens, scopes and one-time logins."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.api.credentials import Credentials, InvalidScope, LoginRefused, UnknownCredential, allows, check_scopes
from asterism.store.memory import MemoryStore


async def test_a_token_is_found_and_the_store_has_only_its_hash() -> None:
    store = MemoryStore()
    new = await Credentials(store).create("ci", ["operate"], by="ann")
    assert new.token.startswith("ast_")
    credential = await Credentials(store).find(new.token)
    assert credential is not None
    assert (credential.name, credential.scopes, credential.created_by) == ("ci", {"operate"}, "ann")
    written = json.dumps([register.value for register in await store.registers("")])
    assert new.token not in written
    assert new.token.split("_", 2)[2] not in written
    assert new.token not in repr(new)


async def test_a_token_with_another_secret_is_not_found() -> None:
    store = MemoryStore()
    new = await Credentials(store).create("ci", ["operate"], by="ann")
    other = await Credentials(store).create("ci", ["operate"], by="ann")
    mixed = f"ast_{new.credential.id}_{other.token[15:]}"
    for token in (mixed, new.token[:-1], new.token + "x", "", "ast_", "ast_../x_y", new.token.upper()):
        assert await Credentials(store).find(token) is None


async def test_expired_and_revoked_tokens_are_not_found_and_stay_listed() -> None:
    store = MemoryStore()
    credentials = Credentials(store)
    old = await credentials.create("old", ["observe"], by="ann", valid_for=-1.0)
    gone = await credentials.create("gone", ["observe"], by="ann")
    await credentials.revoke(gone.credential.id)
    await credentials.revoke(gone.credential.id)
    assert await credentials.find(old.token) is None
    assert await credentials.find(gone.token) is None
    assert not await credentials.is_active(gone.credential.id)
    assert sorted(credential.state(store.clock()) for credential in await credentials.all()) == ["expired", "revoked"]
    with pytest.raises(UnknownCredential, match="token list"):
        await credentials.revoke("nothing")


async def test_credentials_that_ended_long_ago_are_forgotten() -> None:
    store = MemoryStore()
    await Credentials(store).create("old", ["observe"], by="ann", valid_for=-40 * 86_400.0)
    await Credentials(store).create("new", ["observe"], by="ann")
    assert [credential.name for credential in await Credentials(store).all()] == ["new"]


async def test_a_login_code_works_once() -> None:
    credentials = Credentials(MemoryStore())
    code = await credentials.create_login("ann", ["admin"], by="ann")
    new = await credentials.redeem_login(code)
    assert new.credential.kind == "session"
    assert (await credentials.find(new.token)) == new.credential
    with pytest.raises(LoginRefused, match="was used or has expired"):
        await credentials.redeem_login(code)
    assert len(await credentials.all()) == 1


async def test_a_login_code_expires() -> None:
    credentials = Credentials(MemoryStore())
    code = await credentials.create_login("ann", ["admin"], by="ann", valid_for=-1.0)
    with pytest.raises(LoginRefused):
        await credentials.redeem_login(code)


async def test_the_key_of_a_page_is_another_secret_and_only_its_hash_is_stored() -> None:
    store = MemoryStore()
    credentials = Credentials(store)
    new, other = [
        await credentials.redeem_login(await credentials.create_login("ann", ["admin"], by="ann")) for _ in range(2)
    ]
    assert new.page_key is not None
    assert new.credential.has_page_key(new.page_key)
    assert not any(new.credential.has_page_key(key) for key in ("", new.token, other.page_key or ""))
    stored = str(await store.registers("credential/"))
    assert new.page_key not in stored
    token = await credentials.create("ci", ["admin"], by="ann")
    assert token.page_key is None
    assert not token.credential.has_page_key("")


# -- scopes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["", "root", "edit", "edit:", "admin:x", "edit:a\nb", "observe "])
def test_what_is_not_a_scope_is_refused(scope: str) -> None:
    with pytest.raises(InvalidScope, match="not a valid scope"):
        check_scopes([scope])


@pytest.mark.parametrize(
    ("scope", "allowed", "refused"),
    [
        ("observe", ["observe", "observe plan p", "observe series"], ["edit p", "operate", "series", "admin"]),
        ("operate", ["observe", "observe plan p", "edit p", "operate"], ["series", "admin"]),
        ("series", ["series", "observe series"], ["observe", "observe plan series", "operate", "edit series"]),
        ("edit:p", ["edit p", "observe plan p"], ["edit q", "observe plan q", "observe", "operate", "observe series"]),
        ("edit:p[ab]", ["edit p[ab]", "observe plan p[ab]"], ["edit pa", "observe plan pb"]),
        ("edit:p?", ["edit pa"], ["edit p", "edit pab", "edit q?"]),
        ("edit:n-*", ["edit n-1", "observe plan n-1"], ["edit m", "observe"]),
        ("admin", ["observe", "edit p", "operate", "series", "admin", "observe plan p"], []),
    ],
)
def test_what_a_scope_allows(scope: str, allowed: list[str], refused: list[str]) -> None:
    scopes = check_scopes([scope])
    assert all(allows(scopes, need) for need in [*allowed, "known"])
    assert not any(allows(scopes, need) for need in refused)


SCOPES = st.one_of(
    st.sampled_from(["observe", "operate", "series", "admin"]),
    st.text("abc*?[]", min_size=1, max_size=4).map(lambda name: f"edit:{name}"),
)
NEEDS = st.one_of(
    st.sampled_from(["observe", "observe series", "operate", "series", "admin"]),
    st.builds(lambda kind, name: f"{kind} {name}", st.sampled_from(["edit", "observe plan"]), st.text("abc")),
)


@given(st.sets(SCOPES), SCOPES, NEEDS)
def test_more_scopes_never_allow_less(scopes: set[str], more: str, need: str) -> None:
    assert allows(scopes, need) <= allows(scopes | {more}, need)


def test_no_token_acts_as_a_device() -> None:
    with pytest.raises(InvalidScope, match="asterism device invite"):
        check_scopes(["device:lab-1"])


def test_no_pattern_of_a_scope_takes_long_to_compare() -> None:
    """Names of plans come from requests: a pattern that backtracks would take the server's time."""
    scopes = check_scopes([f"edit:{'*a' * 90}*b"])
    before = time.process_time()
    assert not any(allows(scopes, f"edit {'a' * length}") for length in range(300, 500))
    assert time.process_time() - before < 5.0
