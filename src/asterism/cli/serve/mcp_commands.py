"""``asterism mcp``: an MCP server on standard input and output, for a client that starts it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from asterism.cli.cli_context import store_option, with_fleet

if TYPE_CHECKING:
    from asterism.fleet.fleet import Fleet


@click.command()
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    default=("admin",),
    metavar="SCOPE",
    help="What the client may do (repeatable): observe, operate, series, admin or edit:PLAN.  [default: admin]",
)
@click.option("--by", "name", metavar="NAME", help="Name of the client in stories and edits.  [default: you]")
@click.option(
    "--local",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Execute up to N tasks of each submitted plan in this process.",
)
@store_option
def mcp(scopes: tuple[str, ...], name: str | None, local: int, store: str | None) -> int:
    """Let an MCP client read, run and edit plans.

    \b
    asterism mcp --store sqlite:///fleet.db
    asterism mcp --scope observe --scope edit:nightly --by planner

    The client starts this command and speaks with it over standard input and output; it ends with the client. Plans
    that the client submits run while it is there, and afterwards wherever the store is served. For clients on other
    machines, `asterism serve` has the same at /mcp, with tokens.

    A client is an editor: the limits of a plan for its editors hold for it, and people approve edits and raise
    budgets."""
    from asterism.cli.device.device_log import log_to_stderr

    async def run(fleet: Fleet) -> int:
        from asterism.cli.serve.mcp_process import serve_client

        return await serve_client(fleet, name or fleet.by, scopes, local=local)

    with log_to_stderr(as_json=False):
        return with_fleet(store, run, create=True)
