"""The tables of the page of the command line, made of the declarations of the commands."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from asterism.cli.main import commands

BEGIN, END = "<!-- make reference writes this table -->\n", "<!-- end of the table -->\n"

OF_A_FLEET = {"--store", "--json"}
"""The options of all commands on a fleet, which the page explains once."""


def leaves(group: click.Group = commands, above: str = "") -> Iterator[tuple[str, click.Command]]:
    """The commands that do something, by their full names."""
    for name in group.commands:
        command = group.commands[name]
        if isinstance(command, click.Group):
            yield from leaves(command, f"{above}{name} ")
        else:
            yield f"{above}{name}", command


LEAVES = dict(leaves())


def with_command_tables(page: str) -> str:
    """The page with the list of all commands above its first section, and a table of options in the section of each
    command that has some."""
    head, *sections = re.split(r"^(?=## )", page, flags=re.MULTILINE)
    headings = {heading_name(section): section.partition("\n")[0] for section in sections}
    filled = [with_table(section, options_table(heading_name(section))) for section in sections]
    return with_table(head, commands_table(headings)) + "".join(filled)


def heading_name(section: str) -> str:
    """The command that a section is about; empty for a section about something else."""
    match = re.match(r"## asterism (.+?)(?: PLAN\.YAML)?\n", section)
    return match[1] if match is not None else ""


def with_table(section: str, table: str) -> str:
    """A text with a table in the place of the one that it has."""
    if not table:
        return section
    before, begin, rest = section.partition(BEGIN)
    if not begin:  # a new section gets its table at its end
        before, rest = f"{section.rstrip()}\n\n", f"{END}\n"
    return f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}"


def commands_table(headings: dict[str, str]) -> str:
    rows = [
        f"| [`{name}`](#{_anchor(headings[name])}) | {_cell(command.get_short_help_str(200))} |"
        for name, command in LEAVES.items()
        if name in headings  # resume is short for plan resume
    ]
    return "\n".join(["| command | what it does |", "| --- | --- |", *rows, ""])


def _anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", heading.removeprefix("## ").lower()).replace(" ", "-")


def options_table(name: str) -> str:
    """The options of a command, in the order of its help; empty if it has none of its own."""
    command = LEAVES.get(name)
    options = (
        [parameter for parameter in command.params if isinstance(parameter, click.Option)]
        if command is not None
        else []
    )
    if {word for option in options for word in option.opts} >= OF_A_FLEET:
        options = [option for option in options if not OF_A_FLEET & set(option.opts)]
    rows = [f"| {_names(option)} | {_meaning(option)} |" for option in options]
    return "\n".join(["| option | meaning |", "| --- | --- |", *rows, ""]) if rows else ""


def _names(option: click.Option) -> str:
    value = f" {option.metavar}" if option.metavar and not option.is_flag else ""
    value = re.sub(r"^ \[=(.*)\]$", r"=\1", value)  # --local takes its value with = only
    names = sorted((*option.opts, *option.secondary_opts), key=lambda word: not word.startswith("--"))
    return ", ".join(f"`{_bare(name + (value if name.startswith('--') else ''))}`" for name in names)


def _bare(text: str) -> str:
    return text.replace("|", r"\|")


def _meaning(option: click.Option) -> str:
    context = click.Context(click.Command("any"))
    extra = option.get_help_extra(context)
    text = _cell(re.sub(r"\s+\[default: (.*?)\]$", r" Default: \1.", option.help or ""))
    if isinstance(option.type, click.Choice):
        text += f" One of {', '.join(f'`{word}`' for word in option.type.choices)}."
    if option.required:
        text += " Required."
    if "default" in extra:
        text += f" Default: `{extra['default']}`."
    return text


def _cell(text: str) -> str:
    """A text for a table: what looks like an option is code."""
    code = re.sub(r"(?<![\w`'-])(--[a-z][\w-]*)(?![\w`-])", r"`\1`", " ".join(text.split()))
    return _bare(code.replace("<", "&lt;"))
