"""``asterism demo``: runs the demonstration in a temporary folder."""

from __future__ import annotations

import click

from asterism.cli.option_types import option, writable_file
from asterism.cli.plan.plan_context import plain_option

REPORT = "asterism-report.html"


@click.command()
@option("--report FILE.html", "Write a report of the run as a web page.", default=REPORT, callback=writable_file)
@plain_option
def demo(report: str, plain: bool) -> int:
    """Run the demonstration: an editor repairs a release while it runs.

    Three devices build, test, pack and sign a small library. A test finds a bug: the editor adds a patch and a second
    test, and removes what cannot be done on this machine; all other tasks go on. This takes some seconds, and needs
    no network.

    All files are written to a temporary folder, which is removed at the end. What stays is the report. The editor is a
    function; if $ASTERISM_MODEL names a language model, it is that model.

    Exits with 0 if the release was repaired and published, 1 if it was not, 130 if it was cancelled."""
    from asterism.cli.demo.release_demo import run_demo

    return run_demo(report, plain=plain)
