"""Drawings and reports of plans: SVG, Mermaid, terminal, and one HTML page.

::

    from asterism.report import Recording, mermaid, picture, svg, terminal, write_report

    print(svg(picture(plan)))                  # or mermaid(...), or terminal(..., width)

    recording = Recording(plan, orchestrator.events)    # before the plan runs
    result = await orchestrator.run(plan)
    write_report("report.html", result, recording)

A constellation becomes a ``Picture`` (``picture``), plain data that ``svg``, ``mermaid`` and ``terminal`` draw from its
``Graph``. ``layout`` computes places and routes for SVG, and those of a plan that changes on the
page, ``terminal`` has marks and colours for the terminal.

A result becomes a ``Report`` (``result_report``, records in ``report_data``), which ``html_report`` turns into a page
with a ``timeline``. ``result_summary`` has the figures and the JSON of a result, ``event_text`` the sentences for
events.

Invariants: drawing functions are pure: the same data gives the same text, and nothing reads a clock or a terminal.
Every text from outside is cleaned or escaped. Secrets are masked before data reaches a drawing. Large plans are drawn
in part, and the drawing says so.

To add a format, write a function from ``Picture`` to text beside ``mermaid``; to add a section to the page, write a
function in ``html_report``.
"""

from typing import TYPE_CHECKING

from asterism.base.startup import lazy_names
from asterism.report.html_report import report
from asterism.report.mermaid import mermaid
from asterism.report.picture import DrawnEdge, DrawnTask, Picture, picture
from asterism.report.report_data import (
    CycleBar,
    EarlierRun,
    EditRow,
    ExecutionBar,
    Hold,
    Report,
    StoryLine,
    TaskRow,
)
from asterism.report.svg import svg
from asterism.report.terminal import terminal

if TYPE_CHECKING:
    from asterism.report.event_text import sentence as sentence
    from asterism.report.result_report import PlanOrigin as PlanOrigin
    from asterism.report.result_report import Recording as Recording
    from asterism.report.result_report import report_of as report_of
    from asterism.report.result_report import write_report as write_report
    from asterism.report.result_summary import failure_reasons as failure_reasons
    from asterism.report.result_summary import result_json as result_json
    from asterism.report.result_summary import summary_lines as summary_lines

__all__ = [
    "CycleBar",
    "DrawnEdge",
    "DrawnTask",
    "EarlierRun",
    "EditRow",
    "ExecutionBar",
    "Hold",
    "Picture",
    "PlanOrigin",
    "Recording",
    "Report",
    "StoryLine",
    "TaskRow",
    "failure_reasons",
    "mermaid",
    "picture",
    "report",
    "report_of",
    "result_json",
    "sentence",
    "summary_lines",
    "svg",
    "terminal",
    "write_report",
]

# These import the orchestrator, which drawings and tables do not need.
__getattr__, __dir__ = lazy_names(__name__)
