"""Permissions that an agent asks for: every place that its tool names is judged, in whatever form."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asterism.fleet.policy.device_policy import PERMISSIONS, DevicePolicy, Rules
from asterism.models import judged_actions
from asterism.models.judged_actions import JudgedActions


def permitted(folder: Path, kind: str, parameters: Any, locations: bool = True) -> bool:
    rules = Rules(
        permissions=PERMISSIONS, directories=(str(folder),), commands=("true", "echo"), hosts=("example.org",)
    )
    if not (folder / "link").is_symlink():
        (folder / "link").symlink_to("/etc/passwd")
    work: Any = SimpleNamespace(policy=DevicePolicy(rules), note=lambda line: None, cwd=str(folder))
    paths = [str(folder / "a")] if locations else []
    return JudgedActions(work).permit(kind, "title", paths, parameters)


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("edit", None),
        ("edit", {"filePath": "HERE/a", "content": "see /etc/passwd\n", "replace_all": True}),
        ("edit", {"file": "a", "old_string": "/etc", "newString": "~"}),
        ("edit", {"changes": {"HERE/b": {"content": "x"}}}),
        ("edit", {"file_path": "HERE/a", "edits": [{"old_string": "rm", "new_string": "ls", "replace_all": True}]}),
        ("move", {"path": "HERE/a", "destination": "HERE/b"}),
        ("read", {"path": "HERE/a", "offset": 3, "limit": 4, "mode": "plain words"}),
        ("search", {"path": "HERE", "glob": "src/**/*.py", "query": "from /etc import x"}),
        ("search", {"path": "HERE", "pattern": "curl", "output_mode": "content", "-A": 3, "type": "py"}),
        ("execute", {"command": ["true"], "cwd": "HERE", "description": "do nothing", "timeout": 5, "env": {}}),
        ("execute", {"command": "echo", "args": ["; rm -rf /"]}),
        ("fetch", {"url": "https://example.org/", "prompt": "what is it?"}),
    ],
)
def test_what_is_permitted(tmp_path: Path, kind: str, parameters: Any) -> None:
    assert permitted(tmp_path, kind, _here(parameters, str(tmp_path)))


REFUSED = [
    ("move", {"path": "HERE/a", "destination": "/root/.ssh/authorized_keys"}),
    ("move", {"from": "a", "to": "../b"}),
    ("edit", {"filePath": "/root/.bashrc", "content": "x"}),
    ("edit", {"file": "~/.bashrc"}),
    ("edit", {"file": "$HOME/.bashrc"}),
    ("edit", {"uri": "file:///etc/passwd"}),
    ("edit", {"edits": [{"where": {"name": "/etc/passwd"}}]}),
    ("edit", {"changes": {"/etc/passwd": {"content": "x"}}}),
    ("edit", {"patch": "*** Update File: /etc/passwd\n+x"}),
    ("edit", ["/etc/passwd"]),
    ("edit", {"path": "HERE/a", "command": "reboot"}),
    ("edit", {"path": "HERE/a", "changes": {"after": {"run": ["reboot", "now"]}}}),
    ("edit", {"changes": {"link": {"content": "x"}}}),
    ("edit", {"changes": {"link": "x"}}),
    ("read", {"path": "HERE/a", "url": "evil.test"}),
    ("delete", {"paths": ["/etc"]}),
    ("search", {"glob": "/etc/**"}),
    ("execute", {"command": ["true"], "env": {"LD_PRELOAD": "/tmp/x.so"}}),
    ("execute", {"command": ["true"], "environment": ["LD_PRELOAD=x"]}),
    ("execute", {"command": ["true"], "cwd": ["/"]}),
    ("execute", {"command": ["true"], "cwd": "/"}),
    ("execute", {"command": ["true"], "stdin": "x"}),
    ("execute", "true"),
    ("fetch", {"url": "https://example.org/", "urls": ["https://evil.test"]}),
    ("fetch", {"url": "https://example.org/", "headers": {"Host": "evil.test"}}),
    ("fetch", {"url": "https://example.org/", "proxy": "evil.test"}),
]


@pytest.mark.parametrize(("kind", "parameters"), REFUSED)
def test_what_is_refused(tmp_path: Path, kind: str, parameters: Any) -> None:
    assert not permitted(tmp_path, kind, _here(parameters, str(tmp_path)))


def test_a_request_that_names_no_file_is_refused(tmp_path: Path) -> None:
    assert not permitted(tmp_path, "edit", {"content": "x"}, locations=False)


def test_without_the_places_in_its_terms_a_tool_goes_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judged_actions, "_places", lambda parameters, cwd: ())
    monkeypatch.setattr(judged_actions, "_refuse_others", lambda parameters, known: None)
    assert permitted(tmp_path, "edit", {"filePath": "/root/.bashrc"})
    assert permitted(tmp_path, "execute", {"command": ["true"], "env": {"LD_PRELOAD": "/tmp/x.so"}})


def _here(parameters: Any, folder: str) -> Any:
    if isinstance(parameters, dict):
        return {_here(name, folder): _here(value, folder) for name, value in parameters.items()}
    if isinstance(parameters, list):
        return [_here(element, folder) for element in parameters]
    return parameters.replace("HERE", folder) if isinstance(parameters, str) else parameters
