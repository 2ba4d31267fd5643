"""The first HTTP task of a process prepares httpx beside the loop, not in it: others keep their timeouts."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from asterism.base import https_session
from tests.long_tests import rest_long
from tests.process_scenes import PATIENCE

# Importing httpx takes three seconds here, as on a slow machine; the other task has one second, and needs almost none.
SCRIPT = textwrap.dedent(
    """
    import asyncio, sys, time
    from asterism import Constellation, LocalDevice, Orchestrator, Task
    from asterism.base import https_session
    from asterism.execution.http_requests import NoAnswer

    assert "httpx" not in sys.modules

    class Slow:
        def find_spec(self, name, path=None, target=None):
            if name == "httpx":
                sys.meta_path.remove(self)
                time.sleep(3)

    sys.meta_path.insert(0, Slow())

    async def prompt():
        for _ in range(20):
            await asyncio.sleep(0.01)

    if "on the loop" in sys.argv:
        async def at_once(function, *given):
            return function(*given)
        https_session.asyncio.to_thread = at_once

    plan = Constellation()
    plan.add(Task("request", http={"url": "http://127.0.0.1:1/"}))
    plan.add(Task("prompt", call=prompt, timeout=1.0))
    result = asyncio.run(Orchestrator([LocalDevice("here")]).run(plan))
    assert isinstance(result.plan.nodes["request"].error, NoAnswer), result.plan.nodes["request"].error
    print(result["prompt"].status)
    """
)


@pytest.mark.parametrize(
    ("words", "status"), rest_long([((), "completed"), (("on the loop",), "failed")], 1), ids=["thread", "ablation"]
)
def test_a_task_with_a_short_timeout_is_not_failed_by_the_first_request_beside_it(
    words: tuple[str, ...], status: str
) -> None:
    """The ablation prepares httpx on the loop, as it was: then the other task times out."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.stdout == f"{status}\n", done.stderr


async def test_certificates_are_read_once_for_all_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    import httpx

    made = []
    real = httpx.create_ssl_context
    monkeypatch.setattr(
        httpx, "create_ssl_context", lambda *arguments, **options: made.append(1) or real(*arguments, **options)
    )
    monkeypatch.setattr(https_session, "_contexts", {})
    for client in await asyncio.gather(*(https_session.http_client() for _ in range(5))):
        await client.aclose()
    assert len(made) == 1


def test_the_library_for_conditions_is_loaded_without_its_command_line() -> None:
    script = (
        "import sys\nfrom asterism.base import expressions\n"
        "assert expressions.check('1 + 1 == 2') is None\n"
        "print(sorted({'typer', 'rich', 'prompt_toolkit', 'cel.cli'} & set(sys.modules)))\n"
        "import cel\nprint(cel.compile('1 + 2').execute({}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stdout == "[]\n3\n", done.stderr
