"""The file of a device policy: its keys, and every mistake with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.fleet.policy.device_policy import DevicePolicy, Rules
from asterism.fleet.policy.policy_file import LARGEST, InvalidDevicePolicy, parse

WHOLE = """\
# what this device does
commands: [ffmpeg, /opt/tools/*, ~/bin/mine]
shell: false
callables:
  - media.jobs:*
hosts: [api.example.org, "https://*.example.org", "10.0.0.0/8:8080", "[::1]:*"]
directories: [/srv/media, ~/work, ~]
environment: [MEDIA_*, API_TOKEN]
workflows: ["media-*"]
"""


def mistakes(text: str) -> list[str]:
    with pytest.raises(InvalidDevicePolicy) as caught:
        parse(text, "policy.yaml")
    return str(caught.value).split("\n")


def test_a_policy_file_lists_the_allowed(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(WHOLE)
    policy = DevicePolicy.load(str(path))
    assert not policy.everything
    assert policy.name == "policy.yaml"
    assert policy.rules == Rules(
        commands=("ffmpeg", "/opt/tools/*", "~/bin/mine"),
        shell=False,
        callables=("media.jobs:*",),
        hosts=("api.example.org", "https://*.example.org", "10.0.0.0/8:8080", "[::1]:*"),
        directories=("/srv/media", "~/work", "~"),
        environment=("MEDIA_*", "API_TOKEN"),
        workflows=("media-*",),
    )


def test_a_missing_key_allows_nothing_except_all_workflows() -> None:
    assert parse("shell: true") == Rules(shell=True)
    assert parse("{}") == Rules()


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "work").mkdir()
    work = str((tmp_path / "work").resolve())
    assert DevicePolicy(Rules(directories=("~/work",))).directory(work) == work


def test_every_mistake_is_reported_with_its_line() -> None:
    text = """\
comands: [ls]
shell: yes
hosts:
  - fine.example.org
  - not a host
  - x:99999
commands: [./tool, "", ../up, /a/../b, 5]
directories: /srv
callables: [jobs, "jobs:f"]
environment: [A-B, C]
workflows:
shell: true
"""
    assert mistakes(text) == [
        "policy.yaml:1: there is no key 'comands'; did you mean 'commands'?",
        "policy.yaml:2: shell must be true or false, not 'yes'",
        "policy.yaml:5: hosts[1] must be the name of a host (in ASCII), an address or a network such as 10.0.0.0/8, "
        "not 'not a host'",
        "policy.yaml:6: hosts[2] must have a port of at most 65535, not 'x:99999'",
        "policy.yaml:7: commands[0] must be an absolute path, not './tool'",
        "policy.yaml:7: commands[1] must be a name or an absolute path, not ''",
        "policy.yaml:7: commands[2] must be an absolute path, not '../up'",
        "policy.yaml:7: commands[3] must be a path without .., not '/a/../b'",
        "policy.yaml:7: commands[4] must be text, not 5",
        "policy.yaml:8: directories must be a list, such as [one, two], not '/srv'",
        "policy.yaml:9: callables[0] must be package.module:function, with * for any part, not 'jobs'",
        "policy.yaml:10: environment[0] must be the name of a variable, with * for any part, not 'A-B'",
        "policy.yaml:11: workflows must be a list, such as [one, two], not nothing",
        "policy.yaml:12: the key 'shell' is here twice; the first is in line 2",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "policy.yaml:1: a device policy must be a mapping"),
        ("- commands", "policy.yaml:1: a device policy must be a mapping"),
        ("commands: [", "policy.yaml:1: this is not YAML"),
        ("shell: true\n  x: y", "policy.yaml:2: this is not YAML"),
        ("shell: true\n---\nshell: false", "policy.yaml:2: a second document begins here"),
        ("a: &a [*a]", "*a stands for a value that contains it"),
        ("commands: [[[[[[x]]]]]]", "nested too deep"),
        ("[" * 2_000, "policy.yaml:1: this is nested too deep"),
        ("shell: !!python/object/apply:os.system [true]", "shell must be true or false, not a list"),
        ("shell: !!python/object/apply:os.system [true]", "2002:python/object/apply:os.system' has no meaning"),
        ("shell: !mine true", "the tag '!mine' has no meaning"),
        ("commands: [007]", "commands[0] must be text, not 7"),
        ("commands: [!!int 5]", "commands[0] must be text, not 5"),
        ("shell: tRue", "shell must be true or false, not 'tRue'"),
        ("{[1, 2]: 3}", "a key is text"),
        ("commands: [\x01]", "this is not YAML"),
        ("other: 1", "the keys are commands, shell, callables, hosts, directories, environment, secrets, workflows"),
        ("workflows: ['']", "must be the name of a workflow"),
    ],
)
def test_an_invalid_policy_file_is_reported(text: str, words: str) -> None:
    assert any(words in line for line in mistakes(text))


@pytest.mark.parametrize(
    "text", ["shell: !!bool true", "commands: [1e5, 08, ! x, !!str 5]", "directories: [~, ~/work]"]
)
def test_text_that_only_looks_like_a_number_and_standard_tags_are_accepted(text: str) -> None:
    assert parse(text) != Rules()


def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    with pytest.raises(FileNotFoundError):
        DevicePolicy.load(path)
    path.write_bytes(b"shell: true\n# \xff\n")
    with pytest.raises(InvalidDevicePolicy, match=r"policy.yaml:2: the file is not text in UTF-8"):
        DevicePolicy.load(path)
    path.write_bytes(b"#" * (LARGEST + 1))
    with pytest.raises(InvalidDevicePolicy, match="is larger than"):
        DevicePolicy.load(path)


WORDS = st.sampled_from([*WHOLE.split(" "), "\n", ":", "[", "]", "&a", "*a"])


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60) | st.lists(WORDS).map("".join))
def test_any_text_is_a_device_policy_or_has_mistakes(text: str) -> None:
    try:
        DevicePolicy(parse(text))
    except InvalidDevicePolicy as error:
        found_mistakes = error.mistakes
    else:
        return
    assert found_mistakes
    assert all(mistake.line >= 1 for mistake in found_mistakes)
