"""A secret that only the device knows is masked in the output of commands in other processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from asterism.api.client import Client
from tests.cli.cli_scenes import heard
from tests.cli.command_scenes import Scene
from tests.process_scenes import ended

VALUE = "s3cr3t-value/1"
WITHHELD = "[withheld: it may show a secret whose value is unknown here: MY_VALUE]"

PLAN = """\
asterism: 1
id: nightly
tasks:
  says: {shell: 'echo "$T"', env: {T: {secret: MY_VALUE}}}
  takes: {shell: 'test "$said" = "$(cat expected)" && echo same', inputs: {said: {from: says}}, after: says}
  spills: {shell: 'echo "bad $MY_VALUE" >&2; exit 3', after: says}
  by-input: {argv: ["true"], inputs: {x: {from: says, select: "{'a': 1}[result]"}}, after: says}
  by-env: {argv: ["true"], env: {X: {from: says, select: "duration(result)"}}, after: says}
  by-when: {argv: ["true"], after: {says: {when: "int(result) == 1"}}}
  apart: {shell: echo nothing}
"""


def test_a_secret_of_a_device_shows_nowhere_else(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    (tmp_path / "plan.yaml").write_text(PLAN)
    (tmp_path / "expected").write_text(VALUE)
    page = tmp_path / "report.html"
    words = ["run", "plan.yaml", "--store", scene.url, "--no-local", "--json", "--report", str(page)]
    with scene.process("device", "join", "kitchen", "--slots", "4", MY_VALUE=VALUE) as device:
        heard(device, "joined as kitchen")
        with scene.process(*words) as process:
            code, said, errors = ended(process)
        device.terminate()
        _, device_said, device_errors = ended(device)
    assert code == 2, errors
    tasks: dict[str, Any] = json.loads(said)["tasks"]
    assert tasks["says"]["value"] == tasks["takes"]["value"] == WITHHELD
    assert tasks["takes"]["status"] == "completed"  # it was given what was returned, to the byte
    assert tasks["apart"]["value"] == "nothing"
    failed = [tasks[name]["status"] for name in ("spills", "by-input", "by-env", "by-when")]
    assert failed == ["failed", "failed", "failed", "cancelled"]
    shown = [said, errors, device_said, device_errors, page.read_text("utf-8")]
    shown += [
        scene.run(*command).output for command in (["plan", "show", "nightly"], ["plan", "show", "nightly", "--json"])
    ]
    shown += [scene.run("plan", "story", "nightly", *json_or_not).output for json_or_not in ([], ["--json"])]
    shown += [scene.run("runs", "list").output]
    assert not [text for text in shown if "s3cr3t" in text]
    for run in scene.json("runs", "list"):
        told = {name: value for name, value in run.items() if name != "input"}
        assert "s3cr3t" not in json.dumps(told)


HOOK_SECRET = "what-only-the-shop-and-the-server-know"
READS = """\
asterism: 1
id: reads
tasks:
  environ:
    shell: |
      pid=$$
      while [ "$pid" -gt 1 ]; do
        tr '\\0' '\\n' < /proc/$pid/environ 2>/dev/null | grep -c SHOP_EU=what-only && exit 1
        test "$pid" = "$ASTERISM_TEST_SERVER" && exit 0
        pid=$(sed 's/.*) . //; s/ .*//' /proc/$pid/stat)
      done
      exit 2
"""


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="there is no /proc")
def test_a_task_of_a_server_does_not_read_the_secrets_of_its_hooks(tmp_path: Path) -> None:
    """A process of its own: a fork of the tests has another memory of its environment. The task looks at each process
    from itself to the server."""
    scene = Scene(tmp_path)
    words = ["serve", "--store", scene.url, "--listen", "127.0.0.1:0", "--event-hook", "shop-eu=paid", "--local", "1"]
    script = 'ASTERISM_TEST_SERVER=$$ exec "$@"'
    environment = {**os.environ, **scene.env, "ASTERISM_HOOK_SHOP_EU": HOOK_SECRET}
    with subprocess.Popen(
        ["sh", "-c", script, "sh", sys.executable, "-m", "asterism", *words],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            address = re.search(r"http://[\w.:]+", server.stdout.readline())
            assert address is not None
            environ = Path(f"/proc/{server.pid}/environ").read_bytes()
            assert b"ASTERISM_TEST_SERVER" in environ
            assert HOOK_SECRET.encode() not in environ
            token = json.loads(scene.ok("token", "create", "--scope", "operate", "--for", "ann", "--json"))["token"]
            with Client(address[0], token) as client:
                client.submit_plan(READS)
                assert client.watch_plan("reads", timeout=60.0).state == "completed", client.read_task_logs(
                    "reads", "environ"
                )
        finally:
            server.terminate()
            server.communicate()
