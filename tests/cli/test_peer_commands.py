"""Commands for peers before the first sync, and their refusals."""

from __future__ import annotations

import json
import re
import stat
import sys
from pathlib import Path

import pytest

from asterism.peers.invitations import parse_invitation
from tests.cli.command_scenes import Scene
from tests.cli.peer_scenes import House, invitation, refused

URL = "https://kitchen-pc:7420"


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


@pytest.fixture
def kitchen(house: House) -> Scene:
    return house.kitchen


# -- inviting ----------------------------------------------------------------------------------------------------------


def test_an_invitation_is_a_line_for_the_other_machine(kitchen: Scene) -> None:
    result = kitchen.run("peer", "invite", "laptop", "--url", URL)
    assert result.exit_code == 0
    [line] = result.stdout.splitlines()
    wanted = parse_invitation(line)
    assert "run `asterism peer accept -`" in result.stderr
    assert (wanted.url, wanted.name) == (URL, "kitchen-pc")
    assert "within 24 h" in result.stderr
    assert "It works once: the first store that uses it becomes peer laptop" in result.stderr
    assert "asterism peer serve --listen 0.0.0.0:7420\n" in result.stderr
    assert "asterism device join NAME --listen 0.0.0.0:7420\n" in result.stderr
    assert wanted.token not in result.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_an_invitation_for_this_machine_suggests_loopback(tmp_path: Path, host: str) -> None:
    result = Scene(tmp_path).made().run("peer", "invite", "laptop", "--url", f"https://{host}:7421")
    assert result.exit_code == 0, result.output
    assert "asterism peer serve --listen 127.0.0.1:7421" in result.stderr
    assert "0.0.0.0" not in result.stderr


def test_the_token_is_not_in_the_store_or_a_backup(kitchen: Scene) -> None:
    token = parse_invitation(invitation(kitchen, "laptop", URL)).token
    kitchen.ok("store", "backup", str(kitchen.folder / "backup"))
    private = kitchen.folder / "fleet.db-identity.pem"
    for path in kitchen.folder.iterdir():
        assert token.encode() not in path.read_bytes(), path
        if path != private:
            assert b"PRIVATE" not in path.read_bytes(), path
    assert stat.S_IMODE(private.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (("--url", "https://kitchen-pc.local:7420"), "kitchen-pc"),
        (("--url", URL, "--as", "cooker"), "cooker"),
    ],
)
def test_the_name_of_a_store_is_its_host_or_the_option(kitchen: Scene, options: tuple[str, ...], name: str) -> None:
    assert parse_invitation(kitchen.json("peer", "invite", "laptop", *options)["invitation"]).name == name


@pytest.mark.parametrize("options", [(), ("--url", "https://10.0.0.7:7420"), ("--url", "https://[::1]:7420")])
def test_an_ip_address_is_not_used_as_a_name(
    kitchen: Scene, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.node", lambda: "Cooker.local")
    wanted = parse_invitation(kitchen.json("peer", "invite", "laptop", *options)["invitation"])
    assert wanted.name == ("Cooker" if options else "cooker")
    assert options or wanted.url == "https://cooker.local:7420"


def test_an_unused_invitation_can_be_replaced(kitchen: Scene) -> None:
    first, second = invitation(kitchen, "laptop", URL), invitation(kitchen, "laptop", URL)
    assert first != second
    assert parse_invitation(first).fingerprint == parse_invitation(second).fingerprint
    assert [peer["name"] for peer in kitchen.json("peer", "list")] == ["laptop"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("lap/top",), "is not a valid peer name: use 1 to 100 printable characters"),
        (("",), "is not a valid peer name"),
        (("laptop", "--as", "kitchen.pc"), "is not a valid peer name"),
        (("laptop", "--url", "http://kitchen-pc"), "has to begin with https://"),
        (("laptop", "--url", "https://kitchen-pc/api"), "a host and a port only"),
    ],
)
def test_invalid_invite_options_are_refused(kitchen: Scene, words: tuple[str, ...], why: str) -> None:
    options = () if "--url" in words else ("--url", URL)
    refused(kitchen.run("peer", "invite", *words, *options), why)
    assert not kitchen.file.exists() or kitchen.json("peer", "list") == []


def test_devices_that_share_a_store_need_no_peers(kitchen: Scene, postgres_url: str) -> None:
    refused(kitchen.run("peer", "invite", "laptop", "--url", URL, ASTERISM_STORE=postgres_url), "only a SQLite file")


# -- accepting and meeting, what is known to be wrong ------------------------------------------------------------------


def test_an_invalid_invitation_creates_no_store(house: House) -> None:
    refused(house.laptop.run("peer", "accept", "nonsense"), "this is not an invitation; an example: https://")
    assert not house.laptop.file.exists()


def test_unknown_peers_are_refused(kitchen: Scene) -> None:
    invitation(kitchen, "laptop", URL)
    refused(kitchen.run("peer", "sync", "https://nowhere:7420"), "there is no peer at https://nowhere:7420")
    refused(kitchen.run("peer", "sync", "nobody"), "there is no peer 'nobody'; known peers: laptop")
    refused(kitchen.run("peer", "sync", "laptop"), "cannot call laptop, which has no address here")
    refused(kitchen.run("peer", "sync", "http://kitchen-pc:7420"), "has to begin with https://")


def test_a_store_can_be_given_by_its_file(kitchen: Scene) -> None:
    invitation(kitchen, "laptop", URL)
    result = kitchen.run("peer", "sync", str(kitchen.file), "nobody", ASTERISM_STORE="")
    refused(result, "known peers: laptop")
    result = kitchen.run("peer", "sync", str(kitchen.file))
    assert result.exit_code == 64
    assert "is a store: give a PEER as well" in result.stderr
    result = kitchen.run("peer", "sync")
    assert "Give a PEER, or a STORE and a PEER" in result.stderr
    missing = kitchen.run("peer", "sync", str(kitchen.folder / "nothing.db"), "nobody")
    refused(missing, "there is no store", code=69)


def test_an_unreachable_inviter_is_kept_for_the_next_sync(house: House) -> None:
    line = invitation(house.kitchen, "laptop", "https://127.0.0.1:1")
    result = house.laptop.run("peer", "accept", line)
    refused(result, r"https://127\.0\.0\.1:1 is unreachable", "Try again with: asterism peer sync", code=75)
    [told] = house.laptop.json("peer", "list")
    assert (told["state"], told["url"], told["store"]) == ("accepted", "https://127.0.0.1:1", None)
    refused(house.laptop.run("peer", "sync", told["name"]), "is unreachable", code=75)
    refused(house.laptop.run("peer", "sync", "https://127.0.0.1:1/"), "is unreachable", code=75)
    refused(house.laptop.run("peer", "accept", line), "is unreachable", code=75)  # it continues
    other = invitation(house.attic, "laptop", "https://127.0.0.1:1", "--as", told["name"])
    refused(house.laptop.run("peer", "accept", other), "there is already a peer")


def test_a_run_without_a_device_hints_at_peers(house: House) -> None:
    house.laptop.workflow("cook")
    assert "peer sync" not in house.laptop.run("runs", "create", "cook").stderr
    house.laptop.run("peer", "accept", invitation(house.kitchen, "laptop", "https://127.0.0.1:1"), "--name", "kitchen")
    told = "Or offer it to the devices of a peer: asterism peer sync kitchen\n"
    assert told in house.laptop.run("runs", "create", "cook").stderr


def test_a_missing_token_is_reported(house: House) -> None:
    house.laptop.run("peer", "accept", invitation(house.kitchen, "laptop", "https://127.0.0.1:1"), "--name", "kitchen")
    (house.laptop.folder / "fleet.db-peers.json").unlink()
    refused(house.laptop.run("peer", "sync", "kitchen"), "the secret for kitchen is missing")


# -- listing and removing ----------------------------------------------------------------------------------------------


def test_peers_are_listed_with_their_state(kitchen: Scene) -> None:
    result = kitchen.made().run("peer", "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "There are no peers. Invite one with: asterism peer invite NAME" in result.stderr
    invitation(kitchen, "laptop", URL, "--valid", "2h")
    invitation(kitchen, "attic", URL, "--valid", "0")
    head, attic, laptop = kitchen.ok("peer", "list").splitlines()
    assert head.split() == ["PEER", "STATE", "HEARD", "STORE", "NOTE"]
    assert attic.split(maxsplit=3) == ["attic", "expired", "never", "invite it again"]
    assert re.fullmatch(r"laptop\s+invited\s+never\s+the invitation expires in (2 h|120 min)", laptop)
    [told, _] = kitchen.json("peer", "list")
    assert told.keys() == {
        *("name", "state", "store", "url", "pin", "invited_at", "heard_at", "skew", "invitation_expires_at"),
        "stored",
    }


def test_a_peer_is_removed_with_its_token(house: House) -> None:
    house.laptop.run("peer", "accept", invitation(house.kitchen, "laptop", "https://127.0.0.1:1"), "--name", "kitchen")
    assert house.laptop.ok("peer", "remove", "kitchen").startswith("Removed peer kitchen.")
    assert json.loads((house.laptop.folder / "fleet.db-peers.json").read_text()) == {}
    assert house.laptop.json("peer", "list") == []
    refused(house.laptop.run("peer", "remove", "kitchen"), "there is no peer 'kitchen'; known peers: none")
    refused(house.laptop.run("peer", "sync", "kitchen"), "there is no peer 'kitchen'")


# -- listening ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("peer", "serve"), ("device", "join", "cooker")])
def test_an_invalid_listen_option_is_refused(kitchen: Scene, words: tuple[str, ...]) -> None:
    refused(kitchen.made().run(*words, "--listen", "nowhere"), "'nowhere' is not a valid HOST:PORT")
    assert kitchen.json("device", "list") == []


def test_an_unknown_peer_option_is_refused_before_joining(kitchen: Scene) -> None:
    refused(kitchen.run("device", "join", "cooker", "--peer", "laptop"), "there is no peer 'laptop'; known peers: none")
    invitation(kitchen, "laptop", URL)
    refused(kitchen.run("device", "join", "cooker", "--peer", "laptop"), "cannot call laptop")
    assert kitchen.json("device", "list") == []


def test_a_missing_package_is_named_with_its_extra(kitchen: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "cryptography", None)
        refused(
            kitchen.run("peer", "invite", "laptop", "--url", URL),
            r"peers need cryptography: install the extra 'peers'",
        )
    invitation(kitchen, "laptop", URL)
    for name in ("starlette.applications", "uvicorn"):
        with monkeypatch.context() as without:
            without.delitem(sys.modules, "asterism.base.http_server", raising=False)
            without.setitem(sys.modules, name, None)
            refused(kitchen.run("peer", "serve", "--listen", "0"), "install the extra 'peers'")


def test_the_keep_rule_is_an_option_of_runs_create(kitchen: Scene) -> None:
    kitchen.workflow("work")
    for keep in ("epoch", "original"):
        run_id = kitchen.json("runs", "create", "work", "--keep", keep)["id"]
        assert kitchen.ask(lambda fleet, run_id=run_id: fleet.run(run_id)).keep == keep
    run_id = kitchen.json("runs", "create", "work")["id"]
    assert kitchen.ask(lambda fleet: fleet.run(run_id)).keep == "epoch"
    assert kitchen.run("runs", "create", "work", "--keep", "mine").exit_code == 64
