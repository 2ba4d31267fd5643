"""Secrets on a device: no text that leaves it holds one, whatever the work does; results stay as they are."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism import DeviceAgent, Fleet, Workflow
from asterism.api.local.run_handlers import run_document
from asterism.base.secret_mask import Mask
from asterism.core.record import encode
from asterism.execution.processes import CommandFailed
from asterism.execution.task_inputs import MissingInput
from asterism.fleet.coordinator import Notifier
from asterism.fleet.policy.device_policy import DevicePolicy, PolicyForbids, Rules
from asterism.fleet.policy.policy_file import parse
from asterism.fleet.settings import Settings
from tests.fleet.device.device_scenes import Reports, check, command, execute, executors, shell
from tests.process_scenes import PATIENCE

VALUE = "s3cr3t-välue/1"
GIVEN = {"token": {"secret": "MY_VALUE"}}
EXPRESSIONS = ["{'a': 1}[result]", "duration(result)", "result.matches('(' + result)", "int(result)"]


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_VALUE", VALUE)


def policy(**rules: Any) -> DevicePolicy:
    return DevicePolicy(Rules(**rules), "policy.yaml")


# -- expressions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_that_fails_tells_no_secret(expression: str) -> None:
    select = {"from": "token", "select": expression}
    for flow in (
        shell("true", env={"X": select}),
        Workflow("work", http={"url": "http://127.0.0.1:1/", "headers": {"X": select}}),
    ):
        assert check(flow, GIVEN) is None  # a failure of the work is for its execution to tell
        with pytest.raises(ValueError, match="could not be evaluated") as caught:
            execute(flow, GIVEN)
        assert VALUE not in f"{caught.value} {caught.value!r}"


async def run_on_a_device(store: str, flow: Workflow, run_input: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
    """A run on a real store, from its creation to its end: the record, and what `runs show --json` tells of it."""
    async with asyncio.timeout(PATIENCE), await Fleet.open(store) as fleet:
        device = DeviceAgent(fleet, "kitchen", monitor_every=0.1, **options)
        working = asyncio.create_task(device.run())
        await device.joined.wait()
        run = await fleet.wait((await fleet.create(flow, run_input)).id)
        shown = encode(await run_document(fleet, run))
        device.drain()
        await working
        return run, shown


def stored(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_no_failing_expression_brings_a_secret_into_the_store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number, expression in enumerate(EXPRESSIONS):
        flow = shell("true", env={"X": {"from": "token", "select": expression}}, retries=1, backoff=0.0)
        with caplog.at_level(logging.DEBUG):
            run, shown = asyncio.run(run_on_a_device(f"sqlite:///{tmp_path}/{number}.db", flow, GIVEN))
        assert run.status == "failed"
        assert "could not be evaluated" in run.error
        assert VALUE not in json.dumps(shown, ensure_ascii=False)
    written = stored(tmp_path)
    for form in (VALUE, json.dumps(VALUE)[1:-1], "s3cr3t"):
        assert form.encode() not in written
        assert form not in caplog.text


def test_without_the_mask_the_secret_is_in_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An expression repeats nothing of its data, but a request that gets no answer names its address."""
    monkeypatch.setattr(Mask, "error", lambda self, error: error)
    flow = Workflow("work", http={"url": "http://127.0.0.1:1/{token}"})
    asyncio.run(run_on_a_device(f"sqlite:///{tmp_path}/fleet.db", flow, GIVEN))
    assert b"s3cr3t" in stored(tmp_path)


# -- output and results ------------------------------------------------------------------------------------------------


async def test_a_result_is_stored_unmasked_and_shown_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = shell("""printf '{"v1.1": "%s"}' "$token" """)
    run, shown = await run_on_a_device(f"sqlite:///{tmp_path}/fleet.db", flow, GIVEN)
    assert run.output == {"v1.1": VALUE}
    assert shown["output"] == {"v1.1": "[secret]"}

    async def elsewhere() -> dict[str, Any]:
        async with await Fleet.open(f"sqlite:///{tmp_path}/fleet.db") as fleet:
            return encode(await run_document(fleet, await fleet.run(run.id)))

    monkeypatch.delenv("MY_VALUE")
    reports = await elsewhere()
    assert reports["output"] == "[withheld: it may show a secret whose value is unknown here: MY_VALUE]"
    assert reports["input"] == GIVEN


@pytest.mark.long
@settings(max_examples=15, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=("Cs",)), min_size=1))
def test_a_result_is_the_same_to_the_byte(value: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MY_VALUE", value)
        program = "import json, os; print(json.dumps([os.environ['T'], 'v1.1', 'v' + os.environ['T']]))"
        assert execute(command("python3", "-c", program, env={"T": {"secret": "MY_VALUE"}})) == [
            value,
            "v1.1",
            f"v{value}",
        ]


async def test_a_command_that_prints_a_secret_of_earlier_work_is_masked() -> None:
    """It does not refer to it, but has it in its environment."""
    reports = Reports()

    async def main() -> str:
        made = executors()
        try:
            await made.execute(Reports().work(command("true"), GIVEN))
            await made.execute(reports.work(shell('echo "bad $MY_VALUE" >&2; exit 1')))
        except CommandFailed as error:
            return f"{error} {error.output}"
        finally:
            made.close()
        return ""

    assert await main() == "the command exited with 1: bad [secret] bad [secret]\n"
    assert reports.output[-1] == "bad [secret]\n"


def test_a_variable_that_is_named_like_a_secret_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", VALUE)
    reports = Reports()
    with pytest.raises(CommandFailed, match=r"bad \[secret\]$"):
        execute(shell('echo "bad $DEPLOY_TOKEN" >&2; exit 1'), reports=reports)
    assert VALUE not in repr(reports.output)

    def fails() -> None:
        raise ValueError(f"cannot log in with {VALUE}")

    with pytest.raises(ValueError, match=r"^cannot log in with \[secret\]$"):
        execute(Workflow("work", call=fails))


# -- the policy --------------------------------------------------------------------------------------------------------


def test_secrets_of_the_device_policy_are_masked_in_all_output() -> None:
    listed = policy(shell=True, environment=("MY_VALUE",), secrets=("MY_*",))
    reports = Reports()
    assert execute(shell('echo "$MY_VALUE"'), policy=listed, reports=reports) == VALUE
    assert reports.output == ["[secret]\n"]
    with pytest.raises(CommandFailed, match=r"bad \[secret\]$"):
        execute(shell('echo "bad $MY_VALUE" >&2; exit 1'), policy=listed)
    unlisted = policy(shell=True, environment=("MY_VALUE",))
    execute(shell('echo "$MY_VALUE"'), policy=unlisted, reports=reports)
    assert reports.output[-1] == f"{VALUE}\n"  # which is why there is a key for secrets


def test_secrets_are_for_work_that_asks_and_not_for_every_command() -> None:
    listed = policy(commands=("env",), shell=True, secrets=("MY_VALUE",))
    assert "MY_VALUE=" not in execute(command("env"), policy=listed)
    assert execute(shell('echo "$T"', env={"MY_VALUE": {"secret": "MY_VALUE"}}), policy=listed) == ""
    assert execute(shell("echo $MY_VALUE", env={"MY_VALUE": {"secret": "MY_VALUE"}}), policy=listed) == VALUE
    with pytest.raises(PolicyForbids, match="to read the secret 'MY_VALUE': see 'secrets' in it"):
        execute(command("env"), GIVEN, policy(commands=("env",), environment=("MY_VALUE",)))


def test_the_policy_is_asked_before_anything_is_evaluated() -> None:
    flow = shell("true", env={"X": {"from": "token", "select": EXPRESSIONS[0]}})
    with pytest.raises(PolicyForbids, match="to read the secret 'MY_VALUE'"):
        execute(flow, GIVEN, policy(shell=True, environment=("X",)))


def test_the_policy_file_has_a_key_for_secrets() -> None:
    assert parse("secrets: [API_TOKEN, DB_*]\n").secrets == ("API_TOKEN", "DB_*")
    with pytest.raises(Exception, match=r"policy:1: secrets\[0\] must be the name of a variable, with \* for any part"):
        parse("secrets: ['not a name']\n")


def test_short_secrets_of_the_policy_are_warned_of_at_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MY_PIN", "123")
    executors(policy(secrets=("MY_*",))).close()
    assert caplog.messages == [
        "the secret 'MY_PIN' has only 3 characters and is not masked in text; use one of 8 or more"
    ]


async def test_a_short_secret_of_a_run_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MY_PIN", "123")
    made = executors()
    for _ in range(3):
        await made.execute(Reports().work(command("true"), {"pin": {"secret": "MY_PIN"}}))
    made.close()
    assert caplog.text.count("the secret 'MY_PIN' has only 3 characters") == 1


def test_a_secret_that_is_not_named_by_text_fails_the_work() -> None:
    with pytest.raises(MissingInput, match="the name of a secret must be text, not 7"):
        execute(shell("true"), {"token": {"secret": 7}})


# -- notices -----------------------------------------------------------------------------------------------------------


def test_output_of_a_notification_command_is_masked_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listed = policy(commands=("sh",), environment=("MY_VALUE",), secrets=("MY_VALUE",))
    notifier = Notifier(None, listed)  # type: ignore[arg-type] # it is not asked
    reports = Settings(notify_command=("sh", "-c", 'echo "bad $MY_VALUE" >&2; exit 1'))
    assert not asyncio.run(notifier._deliver(reports, {"message": "x"}))
    notifier.close()
    assert "bad [secret]" in caplog.text
    assert VALUE not in caplog.text
