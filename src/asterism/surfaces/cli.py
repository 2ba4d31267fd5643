"""The command ``asterism``.

Exit codes: 0, 1, 2 and 130 say how a plan ended (completed, failed, partially failed, cancelled); 64 says that the
command or the plan was not usable, and why stands on the standard error stream.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from asterism import __version__
from asterism.core.errors import AsterismError
from asterism.surfaces.commands.check import check
from asterism.surfaces.commands.run import run
from asterism.surfaces.commands.schema import schema
from asterism.surfaces.commands.show import show
from asterism.surfaces.screen import forget_output

UNUSABLE = 64
CANCELLED = 130
NOBODY_READS = 141


class CommandLine(click.Group):
    """A group whose mistakes never look like the end of a plan: click's own code for them is 2."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
        except click.ClickException as error:
            error.show()
            sys.exit(UNUSABLE)
        except (AsterismError, OSError) as error:
            click.echo(f"Error: {error}", err=True)
            sys.exit(UNUSABLE)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(CANCELLED)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # a level higher, click would make it the end of a failed plan
            forget_output(sys.stdout)
            return NOBODY_READS


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="asterism", message="%(prog)s %(version)s")
def commands() -> None:
    """Run plans that change while they run."""


for command in (run, check, show, schema):
    commands.add_command(command)


def main() -> None:
    """The entry point."""
    commands()
