"""The table of words lists every option of every command, with the value that it takes."""

from __future__ import annotations

import re

import pytest

from asterism.cli.main import ALIASES, commands
from tests.docs.docs_pages import ROOT
from tests.docs.word_table import used_options

PAGE = (ROOT / "docs" / "reference" / "words.md").read_text("utf-8")
ROWS = [
    tuple(cell.strip().strip("`").replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:3])
    for line in PAGE.partition("## Options")[2].splitlines()
    if line.startswith("| `")
]
VERBS = re.findall(r"`(\w+)`", PAGE.partition("The verbs of commands")[2].partition("Nouns")[0])

OTHER_VALUES = {
    *("--agent", "--file", "--from", "--keep", "--label", "--local", "--metrics", "--name", "--result", "--to"),
    *("--set", "--wait"),
}
"""Options that take another kind of value in some commands. A new one needs a better name."""


def test_every_option_has_a_row_and_every_row_an_option() -> None:
    used = {(option.names, option.value) for option in used_options()}
    assert sorted(ROWS) == sorted(used)


def test_an_option_takes_one_kind_of_value() -> None:
    names = [name for name, _ in ROWS]
    assert {name for name in names if names.count(name) > 1} == OTHER_VALUES


@pytest.mark.parametrize(
    "noun", ["plan", "runs", "device", "schedule", "workflow", "series", "peer", "token", "notice"]
)
def test_what_lists_is_called_list_and_what_removes_remove(noun: str) -> None:
    group = commands.commands[ALIASES.get(noun, noun)]
    verbs = set(getattr(group, "commands", ()))
    assert not verbs & {"ls", "describe", "delete", "rm", "create-all", "stop", "kill", "tail"}
    assert verbs & set(VERBS)
