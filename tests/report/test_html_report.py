"""The report page is complete, well-formed, self-contained, and safe for any text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.core.record import replace
from asterism.report import (
    CycleBar,
    DrawnEdge,
    DrawnTask,
    EarlierRun,
    EditRow,
    ExecutionBar,
    Hold,
    Picture,
    Report,
    StoryLine,
    TaskRow,
    report,
)
from asterism.report.timeline import tick, tick_step

VOID = {"meta", "link", "input", "br"}

RUN = Report(
    title="release",
    state="partially_failed",
    started_at=1000.0,
    ended_at=1010.0,
    figures=(("Makespan", "10 s"), ("Edits accepted", "1")),
    picture=Picture(
        "release",
        (
            DrawnTask("fetch", "Fetch", "completed"),
            DrawnTask("build", "Build", "failed"),
            DrawnTask("rebuild", "Build again", "completed"),
        ),
        (DrawnEdge("fetch", "build"), DrawnEdge("fetch", "rebuild")),
    ),
    executions=(
        ExecutionBar("fetch", "laptop", 0, 1000.0, 1002.0, "completed", False),
        ExecutionBar("build", "server", 0, 1002.0, 1003.0, "failed", False),
        ExecutionBar("build", "server", 2, 1003.5, 1005.0, "failed", False),
        ExecutionBar("rebuild", "server", 0, 1007.0, 1010.0, "completed", True),
    ),
    cycles=(
        CycleBar(1, 1002.0, 1002.4, ("fetch",), "empty", 0),
        CycleBar(2, 1005.0, 1007.0, ("build",), "accepted", 2),
        CycleBar(3, 1006.0, 1006.5, (), "timeout", 0),
    ),
    holds=(Hold("rebuild", 1002.0, 1002.4, 1), Hold("other", 1002.2, 1002.4, None)),
    tasks=(
        TaskRow("fetch", "completed", "laptop", 1, 1000.0, 1002.0, "", '{"bytes": 3}'),
        TaskRow("build", "failed", "server", 2, 1002.0, 1005.0, "exit status 2", ""),
        TaskRow("rebuild", "completed", "server", 1, 1007.0, 1010.0, "", "ok"),
        TaskRow("never", "cancelled", "", 0, None, None, "no device can take it", ""),
    ),
    edits=(
        EditRow(2, 1007.0, "repair", "build failed", ("add task rebuild",), "accepted", ()),
        EditRow(None, 1009.0, "repair", "", ("remove task fetch",), "rejected", ("fetch has completed",)),
    ),
    stories=(
        ("fetch", (StoryLine(1000.0, "dispatched to laptop", "ready"), StoryLine(1002.0, "completed", ""))),
        ("build", (StoryLine(1002.0, "dispatched to server", "fetch completed"),)),
    ),
)
NOTHING = Report("nothing", "completed", 5.0, 5.0, (), Picture("nothing", (), ()), (), (), (), (), (), ())


class Page(HTMLParser):
    """Reads a page; fails when a tag is not closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def classes(self, word: str) -> list[dict[str, str | None]]:
        return [attributes for _, attributes in self.tags if word in (attributes.get("class") or "").split()]


@pytest.mark.parametrize("data", [RUN, NOTHING], ids=["run", "nothing"])
def test_the_page_is_balanced_and_its_ids_are_unique(data: Report) -> None:
    ids = [attributes["id"] for _, attributes in Page(report(data)).tags if "id" in attributes]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("data", [RUN, NOTHING], ids=["run", "nothing"])
def test_the_page_loads_nothing(data: Report) -> None:
    text = report(data).replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|@import|url\((?!#)|\bsrc=", text)
    for _, attributes in Page(report(data)).tags:
        assert (attributes.get("href") or "#").startswith(("#", "data:,"))


def test_the_page_tells_the_state_the_figures_and_every_task() -> None:
    page = Page(report(RUN))
    for words in ("partially failed after 10.0 s", "Makespan 10 s", "exit status 2", "no device can take it"):
        assert words in page.text
    rows = [tags["data-name"] for tag, tags in page.tags if tag == "tr" and "data-name" in tags]
    assert rows == ["fetch", "build", "rebuild", "never"]


def test_times_are_relative_to_the_start() -> None:
    assert "build failed server 2 2.0 s 3.0 s exit status 2" in Page(report(RUN)).text


def test_every_attempt_has_a_bar_in_the_lane_of_its_slot() -> None:
    page = Page(report(RUN))
    bars = [(bar["data-task"], bar["class"]) for bar in page.classes("execution")]
    assert bars == [
        ("fetch", "bar execution is-completed"),
        ("build", "bar execution is-failed"),
        ("build", "bar execution is-failed"),
        ("rebuild", "bar execution is-completed provisional"),
    ]
    # Two lanes of cycles (2 and 3 overlap), one of holds, one slot of the laptop, two of the server.
    assert len(page.classes("lane")) == 2 + 1 + 1 + 2


def test_cycles_and_holds_are_drawn_and_explained() -> None:
    page = Page(report(RUN))
    assert [cycle["class"] for cycle in page.classes("cycle") if "bar" in (cycle["class"] or "")] == [
        "bar cycle is-empty",
        "bar cycle is-accepted",
        "bar cycle is-timeout",
    ]
    assert "Edit cycle 2: accepted, 2 edits 5.0 s to 7.0 s, took 2.0 s opened by build" in page.text
    assert "1 task held by cycle 1 2.0 s to 2.2 s" in page.text
    assert "2 tasks held by cycle 1 2.2 s to 2.4 s, took 200 ms rebuild, other" in page.text
    assert len(page.classes("veil")) == 1


def test_edits_say_what_was_done_or_why_not() -> None:
    text = Page(report(RUN)).text
    assert "accepted version 2 repair 7.0 s build failed add task rebuild" in text
    assert "rejected repair 9.0 s remove task fetch fetch has completed" in text


def test_stories_are_closed_and_linked_from_the_table() -> None:
    page = Page(report(RUN))
    stories = [attributes for tag, attributes in page.tags if tag == "details"]
    assert [story["data-name"] for story in stories] == ["fetch", "build"]
    assert all("open" not in story for story in stories)
    links = [tags["href"] or "" for tag, tags in page.tags if tag == "a"]
    links = [link for link in links if link.startswith("#story-")]
    assert links == ["#story-1", *(f"#{story['id']}" for story in stories)], "the first is that of the failure"


def test_a_report_begins_with_when_where_and_what_failed_and_ends_with_figures() -> None:
    page = Page(report(RUN))
    told = ["Began 1 January 1970, 00:16:40 UTC", "2 completed, 1 failed, 1 cancelled", "on laptop, server"]
    told += ["Failures", "failed on server after 3.0 s, in 2 attempts", "exit status 2", "1 task cancelled: never."]
    places = [page.text.index(words) for words in [*told, "Makespan"]]
    assert places == sorted(places)
    assert "Failures" not in Page(report(NOTHING)).text


def test_an_empty_plan_is_reported() -> None:
    text = Page(report(NOTHING)).text
    for words in (
        "completed after 0 s",
        "plan has no tasks.",
        "Nothing was executed.",
        "plan was not edited.",
    ):
        assert words in text


@pytest.mark.long
def test_a_large_plan_is_drawn_in_part_and_listed_whole() -> None:
    names = [f"t{number}" for number in range(1_000)]
    data = replace(
        RUN,
        picture=Picture(
            "large",
            tuple(DrawnTask(name, name) for name in names),
            tuple(DrawnEdge(f"t{number // 2}", f"t{number}") for number in range(1, 1_000)),
        ),
        executions=tuple(ExecutionBar(name, "d", 0, 1000.0, 1001.0, "completed", False) for name in names),
        holds=tuple(Hold(name, 1000.0 + number / 1000, 1009.0, 1) for number, name in enumerate(names)),
        tasks=tuple(TaskRow(name, "completed", "d", 1, 1000.0, 1001.0, "", "") for name in names),
        stories=tuple((name, ()) for name in names),
    )
    page = Page(report(data))
    assert "The graph shows the first 300 of 1,000 tasks" in page.text
    assert len(page.classes("star")) == 300
    assert len(page.classes("execution")) == 1_000
    assert sum(tag == "details" for tag, _ in page.tags) == 1_000


@pytest.mark.long
def test_a_huge_plan_is_listed_in_part_and_the_page_says_so() -> None:
    row = RUN.tasks[0]
    data = replace(RUN, tasks=tuple(replace(row, id=f"t{number}") for number in range(6_000)))
    page = Page(report(data))
    assert "Shown are the first 5,000 of 6,000 tasks." in page.text
    assert sum("data-name" in attributes for tag, attributes in page.tags if tag == "tr") == 5_000


def everywhere(text: str) -> Report:
    """A report that has the given text in every place that takes one."""
    other = text + "2"
    drawn_tasks = (DrawnTask(text, other, text, text), DrawnTask(other, text))
    return Report(
        title=text,
        state=text,
        started_at=0.0,
        ended_at=1.0,
        figures=((text, text),),
        picture=Picture(text, drawn_tasks, (DrawnEdge(text, other, text, text),)),
        executions=(ExecutionBar(text, text, 0, 0.0, 1.0, text, True),),
        cycles=(CycleBar(1, 0.0, 1.0, (text,), text, 1),),
        holds=(Hold(text, 0.0, 1.0, 1),),
        tasks=(TaskRow(text, text, text, 1, 0.0, 1.0, text, text),),
        edits=(EditRow(1, 0.0, text, text, (text,), text, (text,)),),
        stories=((text, (StoryLine(0.0, text, text),)),),
    )


NASTY = ["</script>", "<!--", "-->", "'\"><img onerror=x>", "&lt;", "]]>"]
SKELETON = [tag for tag, _ in Page(report(everywhere("word"))).tags]


@given(st.text(min_size=1) | st.sampled_from(NASTY))
@settings(deadline=None)
def test_any_text_stays_text(text: str) -> None:
    page = Page(report(everywhere(text)))
    # The same elements as for a harmless word; bars may have room for less text.
    assert [tag for tag, _ in page.tags if tag not in ("text", "p", "span")] == [
        tag for tag in SKELETON if tag not in ("text", "p", "span")
    ]
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)


def test_a_script_in_a_name_appears_as_text() -> None:
    page = Page(report(everywhere("<script>alert(1)</script>")))
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "<script>alert(1)</script>" in page.text


def test_only_the_script_of_the_page_may_run() -> None:
    policies = [tags["content"] for tag, tags in Page(report(RUN)).tags if "http-equiv" in tags]
    assert len(policies) == 1
    assert re.fullmatch(
        r"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-[\w+/]{43}='",
        policies[0] or "",
    )


def test_the_same_data_gives_the_same_page() -> None:
    assert report(RUN) == report(RUN)


@pytest.mark.parametrize(
    ("span", "last"),
    [
        (0.004, "4 ms"),
        (0.75, "700 ms"),
        (3.0, "3 s"),
        (45.0, "40 s"),
        (100.0, "90 s"),
        (500.0, "8 min"),
        (9e4, "24 h"),
        (1e6, "240 h"),
    ],
)
def test_the_axis_has_few_round_ticks(span: float, last: str) -> None:
    step = tick_step(span, 8)
    assert 3 <= span / step <= 8
    assert tick(int(span / step + 1e-9) * step, step) == last


def earlier(*times: float | None, state: str = "completed") -> tuple[EarlierRun, ...]:
    return tuple(
        EarlierRun(f"nightly-{place}", state, 100.0, None if took is None else 100.0 + took)
        for place, took in enumerate(times)
    )


def test_the_page_begins_with_what_failed_and_with_what_the_plan_was_started() -> None:
    page = report(replace(RUN, file="nightly.yaml", params=(("day", "2026-11-19"),), earlier=earlier(8.0)))
    sections = re.findall(r"<section id=\"([a-z-]+)\"", page)
    assert sections[:4] == ["failures", "parameters", "earlier-runs", "graph"]
    assert sections[-1] == "figures"
    assert re.findall(r"<a href=\"#([a-z-]+)\">", page.split("</nav>")[0]) == sections, "each section has its link"
    assert "from nightly.yaml" in page
    assert "<dt>day</dt><dd>2026-11-19</dd>" in page


def test_a_report_without_failures_parameters_and_earlier_runs_has_no_empty_sections() -> None:
    sections = re.findall(r"<section id=\"([a-z-]+)\"", report(NOTHING))
    assert sections == ["graph", "timeline", "tasks", "edits", "output", "stories", "figures"]


@pytest.mark.parametrize(
    ("runs", "sentence"),
    [
        (earlier(4.0), ", 6.0 s longer than the earlier run that completed (4.0 s)"),
        (earlier(12.0, 14.0, 13.0), ", 3.0 s shorter than the median of 3 earlier runs that completed (13.0 s)"),
        (earlier(9.8), ", about as long as the earlier run that completed (9.8 s)"),
        (earlier(4.0, state="repaired"), ", 6.0 s longer than the earlier run that completed (4.0 s)"),
        (earlier(4.0, state="failed"), ""),
        (earlier(None), ""),
        ((), ""),
    ],
)
def test_the_duration_is_compared_with_earlier_runs_that_completed(runs: tuple[EarlierRun, ...], sentence: str) -> None:
    page = report(replace(RUN, state="completed", earlier=runs))
    assert f"after 10.0 s{sentence}</p>" in page
    assert "after 10.0 s</p>" in report(replace(RUN, state="failed", earlier=runs)), "it ended early"


def test_earlier_runs_have_state_begin_and_duration() -> None:
    page = report(replace(RUN, earlier=(*earlier(61.0, state="failed"), EarlierRun("new", "executing", None, None))))
    rows = re.findall(r"<tr><th scope=\"row\">.*?</tr>", page.split('id="earlier-runs"')[1].split("</section>")[0])
    cells = [re.sub(r"(<[^>]+>)+", "|", row).strip("|") for row in rows]
    assert cells == ["nightly-0|failed|1 January 1970, 00:01:40 UTC|1 min 01 s", "new|executing"]


def test_on_a_narrow_screen_each_cell_of_a_task_has_the_name_of_its_column() -> None:
    """The names were given by place, and were wrong for a fleet, whose tasks have one more column."""
    for waited in (None, 3.0):
        page = report(replace(RUN, tasks=tuple(replace(row, waited=waited) for row in RUN.tasks)))
        table = page.split('id="tasks"')[1].split("</section>")[0]
        heads = re.findall(r"<button type=\"button\">(\w+)</button>", table)
        first = re.findall(r"<tr data-name.*?</tr>", table)[0]
        assert ["Task", *re.findall(r"data-label=\"(\w+)\"", first)] == heads
