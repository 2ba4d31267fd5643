"""``asterism schema``: the JSON Schema of plan files."""

from __future__ import annotations

import json

import click

from asterism.planfile import json_schema


@click.command()
def schema() -> None:
    """Print the JSON Schema of plan files, for editors that complete and check."""
    click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
