"""Drawings of a constellation: SVG, Mermaid, terminal, and the HTML report of a run.

Everything here is a pure function from plain data to text. Nothing reads a clock, a plan or a terminal; the
same data always gives the same drawing.
"""

from asterism.report.html_report import report
from asterism.report.mermaid import mermaid
from asterism.report.picture import Line, Picture, Star
from asterism.report.report_data import (
    CycleBar,
    EditRow,
    ExecutionBar,
    Hold,
    Report,
    StoryLine,
    TaskRow,
)
from asterism.report.svg import svg
from asterism.report.terminal import terminal

__all__ = [
    "CycleBar",
    "EditRow",
    "ExecutionBar",
    "Hold",
    "Line",
    "Picture",
    "Report",
    "Star",
    "StoryLine",
    "TaskRow",
    "mermaid",
    "report",
    "svg",
    "terminal",
]
