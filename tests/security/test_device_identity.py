"""What a device at a gateway cannot do: use a code twice or late, speak for another, or for a grant that is over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from asterism.base.private_file import UnusableSecret
from asterism.core.errors import AsterismError
from asterism.core.run.run import Grant, Run
from asterism.core.run.work import Workflow
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.monitor import Monitor
from asterism.gateway import enrolment
from asterism.gateway.device_key import DeviceKey, Enrolment, EnrolmentFile
from asterism.gateway.enrolment import ACCESS_TIME, CODE_TIME, CredentialRefused, ReservedName, enrol, invite, revoke
from asterism.gateway.gateway_connection import DeviceRevoked
from asterism.gateway.gateway_messages import GatewayRefusal
from asterism.store.protocol import Store
from asterism.store.store_errors import StoreUnavailable
from tests.async_tests import async_fixture
from tests.fleet.fleet_scenes import WORK, Device, Stage, staged

pytestmark = pytest.mark.virtual_time


@async_fixture
async def stage() -> AsyncIterator[Stage]:
    async with staged("gateway") as stage:
        yield stage


async def ask(stage: Stage, operation: str, body: Any, token: str | None) -> Any:
    assert stage.gateway is not None
    return await stage.gateway.answer(operation, token, json.loads(json.dumps(body)))


async def access(stage: Stage, name: str, session: str) -> str:
    """An access token as the device gets it."""
    challenge = (await ask(stage, "challenge", {}, None))["challenge"]
    signature = stage.keys[name].sign("token", challenge, session)
    body = {"device": name, "session": session, "challenge": challenge, "signature": signature}
    return str((await ask(stage, "token", body, None))["token"])


async def at_work(stage: Stage, name: str, **options: Any) -> tuple[Device, Run, str]:
    """A device that works on a run, the run, and the token of the grant."""
    device = await stage.device(name, **options)
    run = await stage.person.create(WORK, device=name)
    await stage.at_work(device, run)
    started = await stage.read(run)
    assert stage.gateway is not None
    token = stage.gateway.credentials.grant_token(name, Grant(run.id, device.session, started.epoch))
    return device, started, token


def completion(token: Any, output: Any = "forged") -> dict[str, Any]:
    return {"steps": [{"do": "complete", "grant": token, "output": output}]}


# -- codes -------------------------------------------------------------------------------------------------------------


async def test_a_code_enrols_one_key_and_a_repeated_request_of_that_key_succeeds(stage: Stage) -> None:
    code, key = await invite(stage.store, name="*"), DeviceKey.new()
    await enrol(stage.store, code, "lab-1", key.public)
    again = await enrol(stage.store, code, "lab-1", key.public)
    assert again.key == key.public, "the first answer may have been lost"
    with pytest.raises(CredentialRefused, match="already used"):
        await enrol(stage.store, code, "lab-2", DeviceKey.new().public)
    with pytest.raises(CredentialRefused, match="already used"):
        await enrol(stage.store, code, "lab-1", DeviceKey.new().public)


@pytest.mark.parametrize("jump", [CODE_TIME + 1.0, -3600.0])
async def test_a_code_is_refused_when_its_time_is_over(stage: Stage, jump: float) -> None:
    code = await invite(stage.store, name="*")
    stage.jump += jump
    with pytest.raises(CredentialRefused, match="expired"):
        await enrol(stage.store, code, "lab-1", DeviceKey.new().public)


async def test_a_code_is_for_names_of_its_pattern_and_no_enrolled_name_is_taken_over(stage: Stage) -> None:
    code = await invite(stage.store, name="lab-*")
    with pytest.raises(CredentialRefused, match="a name like 'lab-"):
        await enrol(stage.store, code, "kitchen", DeviceKey.new().public)
    await enrol(stage.store, code, "lab-1", DeviceKey.new().public)
    with pytest.raises(CredentialRefused, match="enrolled already"):
        await enrol(stage.store, await invite(stage.store, name="*"), "lab-1", DeviceKey.new().public)


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "ablation"])
async def test_of_two_names_that_look_alike_one_is_enrolled_also_at_the_same_time(
    stage: Stage, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = [await invite(stage.store, name="*") for _ in range(2)]
    looked, real = asyncio.Barrier(2), enrolment._check_unknown
    first = {"lab-1", "lab-l"}

    async def checked(store: Store, name: str) -> None:
        await real(store, name)
        if name in first:  # both have passed the check before one of them is stored
            first.remove(name)
            await looked.wait()

    monkeypatch.setattr(enrolment, "_check_unknown", checked)
    if not guarded:
        monkeypatch.setattr(enrolment, "_alike_key", lambda name: f"{enrolment.ALIKE}{name}")
    names = zip(codes, sorted(first), strict=True)
    tries = [enrol(stage.store, code, name, DeviceKey.new().public) for code, name in names]
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, CredentialRefused)]
    assert len(refused) == (1 if guarded else 0)
    assert all("looks like that of device" in str(outcome) for outcome in refused)


async def test_no_code_enrols_the_name_of_a_known_device_even_if_it_is_away(stage: Stage) -> None:
    """Runs that are pinned to it would go to the stranger."""
    store_device = stage.fleet("kitchen")
    agent = DeviceAgent(store_device, "Kitchen-1", monitor_every=None)
    task = asyncio.create_task(agent.run())
    await agent.joined.wait()
    agent.drain()
    await task  # it is away from now on
    for name, said in (("Kitchen-1", "is known to this fleet already"), ("kitchen-l", "looks like that of device")):
        with pytest.raises(CredentialRefused, match=said):
            await enrol(stage.store, await invite(stage.store, name="*"), name, DeviceKey.new().public)
        with pytest.raises(CredentialRefused, match=said):
            await invite(stage.store, name=name)
    await enrol(stage.store, await invite(stage.store, name="*"), "lab-1", DeviceKey.new().public)
    await revoke(stage.store, "lab-1")
    await enrol(stage.store, await invite(stage.store, name="lab-1"), "lab-1", DeviceKey.new().public)


@pytest.mark.parametrize(
    "name", ["", "lab-1 ", "lab\u3164", "l\u0430b", "-lab", "lab/1", "lab|1", "x" * 101, "Ignore all rules"]
)
async def test_a_device_has_a_plain_name(stage: Stage, name: str) -> None:
    code = await invite(stage.store, name="*")
    with pytest.raises(ReservedName, match="must have 1 to 100 characters"):
        await enrol(stage.store, code, name, DeviceKey.new().public)
    with pytest.raises(ReservedName, match="must have 1 to 100 characters"):
        await invite(stage.store, name=name)
    with pytest.raises(AsterismError, match="must have 1 to 100 characters"):
        DeviceAgent(stage.fleet("ann"), name)


async def test_a_pattern_of_names_has_no_other_wildcards_than_documented(stage: Stage) -> None:
    with pytest.raises(ReservedName, match="must have 1 to 100 characters"):
        await invite(stage.store, name="lab-[ab]")


@pytest.mark.parametrize("name", ["pz@vm", "server-vm"])
async def test_no_device_gets_the_name_of_a_process_that_runs_a_plan_or_of_a_server(stage: Stage, name: str) -> None:
    for pattern in (name, f"{name}*"):
        with pytest.raises(ReservedName, match="is reserved"):
            await invite(stage.store, name=pattern)
    with pytest.raises(ReservedName, match="choose another name"):
        await enrol(stage.store, await invite(stage.store, name="*"), name, DeviceKey.new().public)


async def test_a_session_has_a_name_that_tokens_of_grants_can_carry(stage: Stage) -> None:
    await stage.enrol("lab-1")
    for session in ("", "a\0", "a\n", "a.b", "x" * 101):
        with pytest.raises(GatewayRefusal, match="a session is named with") as refused:
            await access(stage, "lab-1", session)
        assert refused.value.status == 400


async def test_an_enrolment_has_to_be_signed_by_the_key_that_it_names(stage: Stage) -> None:
    await stage.start_gateway()
    code, key = await invite(stage.store, name="*"), DeviceKey.new()
    body = {
        "device": "lab-1",
        "code": code,
        "key": key.public,
        "signature": DeviceKey.new().sign("enrol", code, "lab-1"),
    }
    with pytest.raises(GatewayRefusal, match="not signed"):
        await ask(stage, "enrol", body, None)
    body["signature"] = key.sign("enrol", code, "lab-1")
    await ask(stage, "enrol", body, None)


async def test_the_store_keeps_no_code(stage: Stage) -> None:
    code = await invite(stage.store, name="*")
    kept = json.dumps([[register.key, register.value] for register in await stage.store.registers("")])
    assert code.removeprefix("astc_") not in kept


async def test_a_device_declares_only_capabilities_that_it_was_enrolled_for(stage: Stage) -> None:
    await stage.enrol("lab-1")
    stage.keys["lab-2"] = DeviceKey.new()
    code = await invite(stage.store, name="lab-2", can=["gpu"])
    await enrol(stage.store, code, "lab-2", stage.keys["lab-2"].public)
    with pytest.raises(Exception, match="not enrolled for tpu"):
        await stage.device("lab-2", can={"gpu", "tpu"})
    assert (await stage.device("lab-2", can={"gpu"})).agent.joined.is_set()


# -- access ------------------------------------------------------------------------------------------------------------


async def test_nothing_is_answered_without_a_token_or_with_a_wrong_one(stage: Stage) -> None:
    await stage.enrol("lab-1")
    for token in (None, "", "astd_x", "astd_e30.0000", "ast_whatever"):
        for operation in ("hello", "beat", "take", "steps", "own", "wait", "fetch", "leave"):
            with pytest.raises(GatewayRefusal) as refused:
                await ask(stage, operation, {}, token)
            assert refused.value.status == 401


async def test_a_token_needs_the_key_of_the_device_and_a_challenge_counts_once(stage: Stage) -> None:
    await stage.enrol("lab-1")
    challenge = (await ask(stage, "challenge", {}, None))["challenge"]
    body = {"device": "lab-1", "session": "s", "challenge": challenge}
    with pytest.raises(GatewayRefusal, match="not signed by the key"):
        await ask(stage, "token", {**body, "signature": DeviceKey.new().sign("token", challenge, "s")}, None)
    signed = {**body, "signature": stage.keys["lab-1"].sign("token", challenge, "s")}
    with pytest.raises(GatewayRefusal, match="unknown or has expired"):
        await ask(stage, "token", signed, None)
    challenge = (await ask(stage, "challenge", {}, None))["challenge"]
    other = {**body, "challenge": challenge, "signature": stage.keys["lab-1"].sign("token", challenge, "another")}
    with pytest.raises(GatewayRefusal, match="not signed by the key"):
        await ask(stage, "token", other, None)


async def test_an_access_token_ends_after_fifteen_minutes_and_the_device_renews_it(stage: Stage) -> None:
    device, _, _ = await at_work(stage, "lab-1")
    token = await access(stage, "lab-1", device.session)
    await ask(stage, "own", {}, token)
    stage.jump += ACCESS_TIME + 1.0
    with pytest.raises(GatewayRefusal, match="expired"):
        await ask(stage, "own", {}, token)
    await device.agent.heartbeat.beat()


async def test_a_field_that_names_another_device_changes_nothing(stage: Stage) -> None:
    """No field of a message says who sends it."""
    victim, run, _ = await at_work(stage, "lab-1")
    other = await stage.device("lab-2")
    token = await access(stage, "lab-2", other.session)
    lies = {"device": "lab-1", "session": victim.session, "owner": ["lab-1", victim.session]}
    assert (await ask(stage, "own", lies, token))["runs"] == []
    await ask(stage, "leave", lies, token)
    states = {session.device: session.state for session in await stage.store.sessions(ended=True)}
    assert states == {"lab-1": "open", "lab-2": "ended"}
    assert (await stage.read(run)).session == victim.session


async def test_a_device_cannot_use_the_session_of_another(stage: Stage) -> None:
    """The session is part of what it signs, and is compared with its own name."""
    victim, run, _ = await at_work(stage, "lab-1")
    await stage.enrol("lab-2")
    token = await access(stage, "lab-2", victim.session)
    for operation in ("own", "take", "leave", "drain", "wait"):
        with pytest.raises(GatewayRefusal, match="has not joined, or is over"):
            await ask(stage, operation, {"limit": 5, "free": 5, "seconds": 1}, token)
    with pytest.raises(StoreUnavailable, match="does not know this device"):
        await ask(stage, "beat", {"profile": {}, "reports": []}, token)
    body = {"host": "mine", "can": [], "slots": 1, "backlog": 0, "timeout": 90.0, "profile": {}}
    with pytest.raises(GatewayRefusal, match="was taken by another device"):
        await ask(stage, "join", body, token)
    assert (await stage.read(run)).session == victim.session


async def test_a_device_of_a_gateway_does_not_replace_one_that_shares_the_store(stage: Stage) -> None:
    await stage.start_gateway()
    key = DeviceKey.new()
    await enrol(stage.store, await invite(stage.store, name="kitchen"), "kitchen", key.public)
    own = Device(stage, "kitchen")
    stage.devices.append(own)
    await own.agent.joined.wait()
    stage.keys["kitchen"] = key
    with pytest.raises(Exception, match="a gateway does not replace it"):
        await stage.device("kitchen", host="elsewhere", replace=True)
    assert not own.task.done()


async def test_a_device_cannot_say_that_a_peer_announced_it(stage: Stage) -> None:
    await stage.enrol("lab-1")
    token = await access(stage, "lab-1", "s-1")
    body = {"host": "via kitchen", "can": [], "slots": 1, "backlog": 0, "timeout": 90.0, "profile": {}}
    with pytest.raises(GatewayRefusal, match="this host is not possible"):
        await ask(stage, "join", body, token)


async def test_a_device_learns_of_completions_only_who_and_when(stage: Stage) -> None:
    device = await stage.device("lab-1")
    other = await stage.device("lab-2")
    run = await stage.person.create(WORK, {"secret": "x"}, device="lab-2", key="order-77", label="for ann")
    await stage.at_work(other, run)
    other.hands.finish(run)
    done = await stage.end_of(run)
    token = await access(stage, "lab-1", device.session)
    answer = await ask(stage, "completions", {"workflow": WORK.name, "limit": 10}, token)
    assert answer == {"completions": [["lab-2", done.ended_at]]}


# -- grants ------------------------------------------------------------------------------------------------------------


async def test_a_forged_result_is_refused(stage: Stage) -> None:
    """Neither a made-up grant nor the grant of another device counts."""
    device, run, grant = await at_work(stage, "lab-1")
    other = await stage.device("lab-2")
    token = await access(stage, "lab-2", other.session)
    made_up = [
        f"astg_{run.id}.{run.epoch}.{device.session}.{'0' * 32}",
        f"astg_{run.id}.{run.epoch}.{other.session}.{'0' * 32}",
        grant,
        grant.replace(f".{run.epoch}.", ".2."),
        None,
        run.id,
        {"run": run.id},
    ]
    for forged in made_up:
        [answer] = (await ask(stage, "steps", completion(forged), token))["steps"]
        assert answer["error"] == "fenced"
    assert (await stage.read(run)) == run
    device.hands.finish(run, "right")
    assert (await stage.end_of(run)).output == "right"


async def test_without_the_code_of_the_gateway_a_forged_result_would_count(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, run, _ = await at_work(stage, "lab-1")
    other = await stage.device("lab-2")
    token = await access(stage, "lab-2", other.session)
    monkeypatch.setattr(enrolment.hmac, "compare_digest", lambda *_: True)
    forged = f"astg_{run.id}.{run.epoch}.{device.session}.{'0' * 32}"
    assert (await ask(stage, "steps", completion(forged), token))["steps"] == [{}]
    assert (await stage.read(run)).output == "forged"


async def test_a_stale_epoch_is_refused_with_a_valid_credential(stage: Stage) -> None:
    flow = Workflow("tight", call="work:do", heartbeat=3.0, heartbeat_timeout=10.0)
    old = await stage.device("lab-1", heartbeat=3.0, heartbeat_timeout=10.0)
    run = await stage.person.create(flow)
    await stage.at_work(old, run)
    assert stage.gateway is not None
    grant = stage.gateway.credentials.grant_token("lab-1", Grant(run.id, old.session, 1))
    old.line.down = True
    new = await stage.device("lab-2", heartbeat=3.0, heartbeat_timeout=10.0)
    monitor = Monitor(stage.fleet("hub"), "hub")
    await stage.until(lambda: not old.hands.busy)
    while stage.store._runs[run.id].epoch < 2:
        await monitor.run_pass()
        await stage.until(lambda: True)
        await new.agent.connection.clock.sleep(1.0)
    token = await access(stage, "lab-1", old.session)
    released = {"do": "release", "reason": "released", "detail": ""}
    for step in ({"do": "complete", "output": 1}, {"do": "fail", "error": "no"}, released):
        [answer] = (await ask(stage, "steps", {"steps": [{**step, "grant": grant}]}, token))["steps"]
        assert answer["error"] in ("fenced", "refused"), step
    assert [notice.kind for notice in await stage.notices("late")] == ["late"]
    await stage.at_work(new, run)
    new.hands.finish(run, "right")
    assert (await stage.end_of(run)).output == "right"


async def test_only_the_input_of_a_grant_is_read_and_only_own_values_are_results(stage: Stage) -> None:
    device, run, grant = await at_work(stage, "lab-1")
    secret = await stage.store.put_blob(b'"of another run"')
    token = await access(stage, "lab-1", device.session)
    with pytest.raises(GatewayRefusal, match="no input apart"):
        await ask(stage, "fetch", {"grant": grant, "blob": secret}, token)
    for stolen in (f"{secret}.16.{'0' * 32}", secret):
        step = {"do": "complete", "grant": grant, "blob": stolen}
        [answer] = (await ask(stage, "steps", {"steps": [step]}, token))["steps"]
        assert "error" in answer
    [answer] = (await ask(stage, "steps", completion(grant, {"$blob": secret, "size": 16}), token))["steps"]
    assert "looks like a reference" in answer["message"]
    assert (await stage.read(run)).status == "processing"


# -- revocation --------------------------------------------------------------------------------------------------------


async def test_a_revoked_device_stops_with_its_next_heartbeat_and_its_credentials_end(stage: Stage) -> None:
    device, run, grant = await at_work(stage, "lab-1", heartbeat=3.0, heartbeat_timeout=10.0)
    token = await access(stage, "lab-1", device.session)
    await revoke(stage.store, "lab-1")
    revoked = stage.now()
    with pytest.raises(DeviceRevoked, match="has revoked device 'lab-1'"):
        await device.task
    assert stage.now() - revoked <= 3.1, "within one heartbeat"
    assert device.hands.busy == set()
    for operation in ("hello", "beat", "take", "steps", "own"):
        with pytest.raises(GatewayRefusal) as refused:
            await ask(stage, operation, completion(grant), token)
        assert (refused.value.status, refused.value.kind) == (403, "revoked")
    with pytest.raises(GatewayRefusal, match="revoked"):
        await access(stage, "lab-1", "s-2")
    assert (await stage.read(run)).output is None


async def test_a_revoked_device_that_sends_no_heartbeat_is_refused_a_second_later(stage: Stage) -> None:
    device, run, grant = await at_work(stage, "lab-1")
    token = await access(stage, "lab-1", device.session)
    await ask(stage, "own", {}, token)
    await revoke(stage.store, "lab-1")
    await device.agent.connection.clock.sleep(enrolment.KNOWN_FOR)
    with pytest.raises(GatewayRefusal, match="revoked"):
        await ask(stage, "steps", completion(grant), token)
    assert (await stage.read(run)).output is None
    device.task.cancel()


async def test_a_revoked_name_is_enrolled_again_with_a_new_code_and_old_tokens_stay_refused(stage: Stage) -> None:
    device, _, _ = await at_work(stage, "lab-1")
    token = await access(stage, "lab-1", device.session)
    await revoke(stage.store, "lab-1")
    await device.leave()
    await stage.enrol("lab-1")
    with pytest.raises(GatewayRefusal, match="enrolled again"):
        await ask(stage, "hello", {}, token)
    assert (await stage.device("lab-1")).agent.joined.is_set()


# -- the key of a device -----------------------------------------------------------------------------------------------


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = EnrolmentFile("https://host:7400", "../../lab", tmp_path)
    file.write(Enrolment(DeviceKey.new()))
    assert tmp_path in file.path.parents
    assert ".." not in file.path.parts
    assert file.path.stat().st_mode & 0o077 == 0
    read = file.read()
    assert read is not None
    assert read.key.to_text() not in repr(read)
    file.path.chmod(0o644)
    with pytest.raises(UnusableSecret, match="other users can read"):
        file.read()
