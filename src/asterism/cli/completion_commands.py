"""``asterism completion``: the script with which a shell completes commands, options and names."""

from __future__ import annotations

import click

PROGRAM = "asterism"
SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands and names in a shell.

    It completes commands, options, files, and the names of plans, tasks, runs, devices, workflows, series and peers
    in the store. Load it when the shell starts:

    \b
    bash   in ~/.bashrc:  eval "$(asterism completion bash)"
    zsh    in ~/.zshrc:   eval "$(asterism completion zsh)"
    fish   once:          asterism completion fish > ~/.config/fish/completions/asterism.fish

    bash has to be 4.4 or later. In zsh the line comes after compinit."""
    from click.shell_completion import ShellComplete, get_completion_class

    from asterism.cli.main import commands

    completion_class = get_completion_class(shell)
    assert completion_class is not None
    script = completion_class(commands, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE")
    # that of bash itself would start a bash, to look at its version
    click.echo(ShellComplete.source(script).rstrip())
