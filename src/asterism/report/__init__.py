"""Pictures and reports of plans: a list in the terminal, Mermaid, and the page in one HTML file.

::

    from asterism.report import Recording, mermaid, picture, terminal, write_report

    print(mermaid(picture(plan)))              # or terminal(picture(plan), width)

    recording = Recording(plan, orchestrator.events)    # before the plan runs
    result = await orchestrator.run(plan)
    write_report("report.html", result, recording)

A constellation becomes a ``Picture`` (``picture``), plain data that ``terminal`` lists and ``mermaid`` draws.

A result becomes documents (``result_report``), those that the page of the server asks for; ``html_report`` puts them
and the page (``server/page/report.js``) into one file. ``result_summary`` has the figures and the JSON of a result,
``event_text`` the sentences for events.

Invariants: drawing functions are pure: the same data gives the same text, and nothing reads a clock or a terminal.
Every text from outside is cleaned or escaped. Secrets are masked before data reaches a drawing. Large plans are shown
in part, and it says so.

To add a format, write a function from ``Picture`` to text beside ``mermaid``; to add something to the report, add it to
its documents and to ``report.js``.
"""

from typing import TYPE_CHECKING

from asterism.base.startup import lazy_names
from asterism.report.mermaid import mermaid
from asterism.report.picture import DrawnEdge, DrawnTask, Picture, picture
from asterism.report.terminal import terminal

if TYPE_CHECKING:
    from asterism.report.event_text import sentence as sentence
    from asterism.report.html_report import report as report
    from asterism.report.result_report import EarlierRun as EarlierRun
    from asterism.report.result_report import PlanOrigin as PlanOrigin
    from asterism.report.result_report import Recording as Recording
    from asterism.report.result_report import report_of as report_of
    from asterism.report.result_report import write_report as write_report
    from asterism.report.result_summary import failure_reasons as failure_reasons
    from asterism.report.result_summary import result_json as result_json
    from asterism.report.result_summary import summary_lines as summary_lines

__all__ = [
    "DrawnEdge",
    "DrawnTask",
    "EarlierRun",
    "Picture",
    "PlanOrigin",
    "Recording",
    "failure_reasons",
    "mermaid",
    "picture",
    "report",
    "report_of",
    "result_json",
    "sentence",
    "summary_lines",
    "terminal",
    "write_report",
]

# These import the orchestrator, which lists and tables do not need.
__getattr__, __dir__ = lazy_names(__name__)
