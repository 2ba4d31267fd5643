"""Models that edit plans: how long a prompt is, which calls a filter avoids, and the makespan with a slow model.

All of it is exact: prompts are counted, not sent; the model is a script; time is virtual. LangGraph and pydantic-graph
do the same job in supersteps: a wave of tasks, then the model, then the next wave.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from asterism import Constellation, LocalDevice, Orchestrator, Task, Work
from asterism.core.plan.constellation import ConstellationView, TaskView
from asterism.core.plan.editor_cost import EditorCost
from asterism.core.plan.status import FAILED
from asterism.models import EditFilter, ModelCaller, ModelEditor, Price
from asterism.models.answer_form import Form
from asterism.models.conversation import TOOLS
from asterism.models.model_calls import Bill
from asterism.models.model_messages import ModelAnswer, ModelQuestion, ToolCall
from asterism.models.plan_prompt import INSTRUCTIONS, PromptMemory, Surroundings, plan_prompt
from asterism.orchestrator.events import TaskEvent
from asterism.orchestrator.result import Result
from asterism.testing.virtual_time import run
from bench.page import table
from bench.proof import check_plan

SIZES = (10, 100, 1_000, 10_000)
GROWTH = 1.10
"""How much longer a prompt may be in the largest plan than in the smallest."""

CHARACTERS_PER_TOKEN = 4
LATENCY = 2.0
SLOTS = 5
POLICIES = ("global", "scoped", "speculative")

Graph = Mapping[str, tuple[float, tuple[str, ...]]]
"""The seconds of each task, and what comes before it."""

TIMELINE: Graph = {"a": (2.0, ()), "b": (6.0, ()), "c": (4.0, ("a",))}
"""The example of the timeline of an orchestrator: *a* and *b* begin at once, *c* follows *a* while *b* still runs."""

RELEASE: Graph = {
    "generate": (1.0, ()),
    "find-typesetter": (0.5, ()),
    "lint": (2.0, ("generate",)),
    "audit": (1.0, ("generate",)),
    "test-angles": (3.0, ("generate",)),
    "test-numbers": (2.0, ("generate",)),
    "fuzz": (6.0, ("generate",)),
    "measure": (3.0, ("lint",)),
    "docs-html": (2.0, ("generate",)),
    "docs-pdf": (2.0, ("find-typesetter", "docs-html")),
    "proofread-pdf": (1.0, ("docs-pdf",)),
    "bundle-docs": (1.0, ("docs-html", "proofread-pdf")),
    "changelog": (1.0, ("generate", "audit")),
    "package": (2.0, ("lint", "audit", "test-angles", "test-numbers")),
    "smoke": (1.0, ("package",)),
    "sign": (1.0, ("package",)),
    "verify": (1.0, ("sign",)),
    "publish": (1.0, ("verify", "smoke", "fuzz", "measure", "bundle-docs", "changelog")),
}
"""The tasks of the demonstration; the seconds are made up."""

REPAIR: list[dict[str, Any]] = [
    {"op": "add_task", "task": {"id": "patch", "data": {"seconds": 1.0}}},
    {"op": "add_dependency", "source": "test-numbers", "target": "patch", "on": "failure", "handled": True},
    {"op": "add_task", "task": {"id": "retest", "data": {"seconds": 2.0}}},
    {"op": "add_dependency", "source": "patch", "target": "retest"},
    {"op": "add_dependency", "source": "retest", "target": "package"},
    {"op": "remove_dependency", "source": "test-numbers", "target": "package"},
]
PRUNE: list[dict[str, Any]] = [
    {"op": "remove_dependency", "source": "proofread-pdf", "target": "bundle-docs"},
    {"op": "remove_task", "task_id": "docs-pdf", "dependents": "remove"},
]
ANSWERS = {
    "task 'test-numbers' failed": REPAIR,
    "task 'find-typesetter' completed": PRUNE,
    "task 'docs-pdf' failed": PRUNE[:1],  # too late to remove it
}
"""What the editor of the demonstration does, by the line of a prompt that it answers."""

FILTERS: dict[str, Any] = {
    "`all`": "all",
    "`failure`, `tasks=find-typesetter` (as in the demo)": ["failure", "tasks=find-typesetter"],
    "`failure`": "failure",
}


# -- prompts -----------------------------------------------------------------------------------------------------------


def prompt_length(count: int) -> int:
    """The characters of a request about one failure in a plan with this many tasks: instructions, prompt and tools."""
    plan = Constellation("large")
    plan.add(Task("bad", shell="make test", description="run the tests"))
    for number in range(3):
        plan.add(Task(f"below-{number}", shell="make package", description="needs the tests"), after="bad")
    for number in range(count - 4):
        plan.add(Task(f"other-{number:05}", shell="make something", description="does something else"))
    plan.begin(0.0)
    node = plan.node("bad")
    node.entry = None  # taken from the queue
    plan.start(node, "desk", 0.0)
    error = RuntimeError("exit code 2")
    plan.finish(node, FAILED, 1.0, None, error, True)
    event = TaskEvent(
        kind="task_failed", at=1.0, task_id="bad", status=FAILED, device="desk", attempt=1, reason=str(error)
    )
    output = "\n".join(f"line {number} of the output of the tests" for number in range(100))
    around = Surroundings([("desk", ["python"], 4)], {"bad": output})
    prompt = plan_prompt(ConstellationView(plan), [event], PromptMemory(), around)
    missing = [words for words in ("'bad'", "exit code 2", "below-2", "line 99 of") if words not in prompt]
    assert not missing, f"the prompt does not tell of {missing}"
    assert len(plan) == count, f"the plan has {len(plan)} tasks, not {count}"
    return len(ModelQuestion(INSTRUCTIONS, ({"user": prompt},), TOOLS).text)


def prompt_tokens() -> dict[int, int]:
    """Tokens of a request by the size of the plan, at four characters a token."""
    return {count: round(prompt_length(count) / CHARACTERS_PER_TOKEN) for count in SIZES}


# -- the release with a scripted model ---------------------------------------------------------------------------------


class ScriptedCaller(ModelCaller):
    """A model that takes its time. It edits the plan as ``answers`` say, and otherwise leaves it as it is."""

    def __init__(self, seconds: float, answers: Mapping[str, list[dict[str, Any]]] | None = None) -> None:
        super().__init__(["bench:scripted"], prices={"bench:scripted": Price(1.0, 10.0)})
        self.seconds, self.answers, self.calls = seconds, answers or {}, 0

    async def _attempt(self, model: Any, name: str, question: ModelQuestion, form: Form, bill: Bill) -> ModelAnswer:
        self.calls += 1
        await asyncio.sleep(self.seconds)
        bill.cost = EditorCost(name, 1, 1_000, 20, None, self.seconds)
        edits = [edit for line, answer in self.answers.items() if line in question.text for edit in answer]
        arguments = json.dumps({"edits": edits, "reason": ""})
        return ModelAnswer("", (ToolCall(str(self.calls), "answer", arguments),), False, name)


def plan_of(graph: Graph) -> Constellation:
    plan = Constellation("plan")
    for task, (seconds, after) in graph.items():
        plan.add(Task(task, data={"seconds": seconds}, estimate=seconds, revocable=True), after=list(after))
    return plan


async def _work(work: Work) -> str:
    await asyncio.sleep(work.task.data["seconds"])
    return "done"


async def _failing_work(work: Work) -> str:
    """As in the demonstration: a test finds a bug, and there is no program that makes a PDF."""
    await asyncio.sleep(work.task.data["seconds"])
    if work.task.id in ("test-numbers", "docs-pdf"):
        raise RuntimeError("exit code 1")
    return "done"


def edited(graph: Graph, policy: str, ask: Any = "all", latency: float = LATENCY) -> float:
    """The makespan of a plan that needs no repair, under one lock policy."""
    caller = ScriptedCaller(latency)
    editor = ModelEditor("bench:scripted", caller=caller, ask=ask)
    desk = LocalDevice("desk", slots=SLOTS, run=_work)
    result = run(Orchestrator([desk], editor=editor, policy=policy, rank=True).run(plan_of(graph)))
    check_plan(result, dict.fromkeys(graph, "done"))
    assert ask != "all" or caller.calls > 0, "the model was not asked"
    return result.summary.makespan


def calls_by_filter() -> dict[str, tuple[int, int]]:
    """Calls of the model, and ends that cost none, by filter, in a release that the model repairs."""
    calls = {}
    for name, ask in FILTERS.items():
        caller = ScriptedCaller(LATENCY, ANSWERS)
        rule, avoided = EditFilter.parse_all(ask), list[str]()

        def is_asked(task: TaskView, rule: EditFilter = rule, avoided: list[str] = avoided) -> bool:
            if not rule(task):
                avoided.append(task.id)
            return rule(task)

        editor = ModelEditor("bench:scripted", caller=caller, ask=is_asked)
        desk = LocalDevice("desk", slots=SLOTS, run=_failing_work)
        result = run(Orchestrator([desk], editor=editor, policy="scoped", rank=True).run(plan_of(RELEASE)))
        check_release(result)
        calls[name] = (caller.calls, len(avoided))
    return calls


def check_release(result: Result) -> None:
    """Raise AssertionError unless the release was published, its bug repaired, and nothing waits for the PDF: the
    answers of the model were applied."""
    missing = {"patch", "retest", "publish"} - result.values.keys()
    assert not missing, f"{sorted(missing)} have not completed: the plan is {result.state}"
    assert result.summary.edits_accepted >= 2, f"{result.summary.edits_accepted} answers of the model were applied"
    sources = {dependency.source for dependency in result["bundle-docs"].dependencies}
    assert sources == {"docs-html"}, f"bundle-docs depends on {sources}"


# -- wave by wave ------------------------------------------------------------------------------------------------------


def waves_of(graph: Graph) -> list[list[str]]:
    """The tasks level by level: each wave needs only earlier ones."""
    levels: dict[str, int] = {}
    for task, (_, after) in graph.items():
        levels[task] = 1 + max((levels[earlier] for earlier in after), default=-1)
    return [[task for task in graph if levels[task] == level] for level in range(max(levels.values()) + 1)]


async def langgraph_run(graph: Graph) -> None:
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import Send
    from typing_extensions import TypedDict

    class Progress(TypedDict):
        wave: int

    waves, slots, worked = waves_of(graph), asyncio.Semaphore(SLOTS), list[str]()

    async def work(task: str) -> None:
        async with slots:
            await asyncio.sleep(graph[task][0])
        worked.append(task)

    async def model(state: Progress) -> Progress:
        await asyncio.sleep(LATENCY)
        return {"wave": state["wave"] + 1}

    async def fan_out(state: Progress) -> Any:
        return END if state["wave"] == len(waves) else [Send("work", task) for task in waves[state["wave"]]]

    builder: Any = StateGraph(Progress)
    builder.add_node("work", work)
    builder.add_node("model", model)
    builder.add_conditional_edges(START, fan_out, ["work", END])
    builder.add_edge("work", "model")
    builder.add_conditional_edges("model", fan_out, ["work", END])
    await builder.compile().ainvoke({"wave": 0}, {"recursion_limit": 100})
    check_worked(graph, worked)


async def pydantic_graph_run(graph: Graph) -> None:
    from types import NoneType

    from pydantic_graph import GraphBuilder, reduce_null

    slots, worked = asyncio.Semaphore(SLOTS), list[str]()

    async def work(ctx: Any) -> None:
        async with slots:
            await asyncio.sleep(graph[ctx.inputs][0])
        worked.append(ctx.inputs)

    async def model(ctx: Any) -> None:
        await asyncio.sleep(LATENCY)

    def wave(ctx: Any) -> Any:
        return ctx.state.pop() if ctx.state else None

    builder: Any = GraphBuilder(state_type=list, auto_instrument=False)
    step, think = builder.step(work, node_id="work"), builder.step(model, node_id="model")
    join = builder.join(reduce_null, initial=None, node_id="join")
    fork = (
        builder.decision()
        .branch(builder.match(list).map().to(step))
        .branch(builder.match(NoneType).to(builder.end_node))
    )
    builder.add(
        builder.edge_from(builder.start_node).transform(wave).to(fork),
        builder.edge_from(step).to(join),
        builder.edge_from(join).to(think),
        builder.edge_from(think).transform(wave).to(fork),
    )
    await builder.build().run(state=waves_of(graph)[::-1])
    check_worked(graph, worked)


def check_worked(graph: Graph, worked: list[str]) -> None:
    """Raise AssertionError unless each task was done once."""
    assert sorted(worked) == sorted(graph), f"{len(worked)} executions of {len(graph)} tasks: {sorted(worked)}"


def virtual_seconds(main: Callable[[], Any]) -> float | None:
    """How long it takes in virtual time; None if its library is not installed."""

    async def timed() -> float:
        began = asyncio.get_running_loop().time()
        await main()
        return asyncio.get_running_loop().time() - began

    try:
        return run(timed())
    except ImportError:
        return None


def makespans(graph: Graph) -> dict[str, float | None]:
    """Seconds by engine."""
    seconds: dict[str, float | None] = {f"asterism, {policy}": edited(graph, policy) for policy in POLICIES}
    seconds["asterism, scoped, asked about failures only"] = edited(graph, "scoped", "failure")
    seconds["langgraph, wave by wave"] = virtual_seconds(lambda: langgraph_run(graph))
    seconds["pydantic_graph, wave by wave"] = virtual_seconds(lambda: pydantic_graph_run(graph))
    return seconds


# -- the page ----------------------------------------------------------------------------------------------------------

HEAD = """# Benchmarks: models that edit plans

Written by `python -m bench models`. Prompts are counted, not sent; the model is a script, and time is virtual, so the
figures are exact.
"""


def prompts_text(tokens: dict[int, int]) -> str:
    growth = tokens[SIZES[-1]] / tokens[SIZES[0]]
    row = [
        "tokens",
        *(f"{size:,}" for size in tokens.values()),
        f"{growth:.3f}",
        "met" if growth <= GROWTH else "missed",
    ]
    return f"""## Tokens of a request

A request about one failed task with three tasks below it: instructions, tools, and the prompt with the end of the
output. {CHARACTERS_PER_TOKEN} characters count as a token. The bar is a growth of {GROWTH:g} times.

{table(["tasks of the plan", *(f"{count:,}" for count in tokens), "growth", "bar"], [row])}
"""


def calls_text(calls: dict[str, tuple[int, int]]) -> str:
    rows = [[ask, str(asked), str(avoided)] for ask, (asked, avoided) in calls.items()]
    return f"""## Calls that a filter avoids

The release of `make demo`, simulated: its {len(RELEASE)} tasks and dependencies, with made-up durations and a scripted
model that takes {LATENCY:g} s and makes the edits of the demo's editor. A test fails, and the model adds a patch and
another test; no program makes a PDF, and the model releases without one. Ends that arrive while the model thinks share
a call. Each row ends with everything published.

{table(["asked about", "calls of the model", "ends without a call"], rows)}
"""


def makespan_text(timeline: dict[str, float | None], release: dict[str, float | None]) -> str:
    best = [min(time for time in times.values() if time is not None) for times in (timeline, release)]
    rows = [
        [engine, *(_seconds(times[engine], least) for times, least in zip((timeline, release), best, strict=True))]
        for engine in timeline
    ]
    return f"""## Makespan with a slow model

*Example* is the one of an orchestrator's timeline: a ({TIMELINE["a"][0]:g} s) and b ({TIMELINE["b"][0]:g} s) begin at
once, c ({TIMELINE["c"][0]:g} s) follows a while b still runs. *Release* is the one above, without failures, on {SLOTS}
slots. Time is virtual. The model takes {LATENCY:g} s for each answer, and reviews every end unless the row says
otherwise. The other engines run a wave of tasks, ask the model, and run the next wave.

{table(["engine", "example", "release"], rows)}
"""


def _seconds(seconds: float | None, best: float) -> str:
    return "not installed" if seconds is None else f"{seconds:.1f} s ({seconds / best:.2f}×)"
