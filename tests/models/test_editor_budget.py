"""A spent budget holds the plan, and says why; a person raises it, or the plan goes on without its editor."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import pytest

from asterism import Constellation, EditEvent, Task, TaskEvent
from asterism.core.plan.edit_rules import ApprovalRule
from asterism.durable import go_on_without_editor, raise_budget, read_account
from asterism.durable.plan_actor import ask_why, refuse_edit
from asterism.durable.plan_metrics import plan_families
from asterism.fleet import retention
from asterism.models import Budget, ModelEditor, StoreCassette
from asterism.models.budget import Price
from asterism.models.model_calls import ModelCaller
from tests.durable.durable_scenes import heard_by, left, staged
from tests.models.editor_scenes import REPAIR, ScriptedCaller, add, fails, ok, orchestrator, pipeline, scripted

pytestmark = pytest.mark.virtual_time


async def held(model, plan=None):
    """A plan that waits for a person: the orchestrator, its run, and why its last task waits."""
    runner = orchestrator(model)
    waits = asyncio.Event()
    runner.events.subscribe(lambda event: waits.set() if event.kind == "editor_held" else None, EditEvent)
    running = asyncio.create_task(runner.run(plan or pipeline()))
    await waits.wait()
    return runner, running


async def test_a_spent_budget_holds_the_tasks_below_and_says_why():
    model = scripted(REPAIR, budget=Budget(calls=0))
    runner, running = await held(model)
    why = str(runner.why("publish"))
    assert "it needs 'test' to succeed" in why
    assert "the budget of its editor is spent: 0 of 0 calls are spent" in why
    [cycle] = runner.cycles()
    assert "the budget of its editor is spent: 0 of 0 calls are spent" in cycle.on_hold
    await asyncio.sleep(3600)
    assert not running.done()
    model.raise_budget("pipeline", "1call", by="ann")
    result = await running
    assert result["publish"].status == "completed"
    told = [(entry.what, entry.why) for entry in result.story() if entry.what.startswith("editor")]
    assert [what for what, _ in told] == ["editor waits", "editor continues", "editor called"]
    assert "the budget is now 1 call, 500 tasks, changed by ann" in told[1][1]


async def test_a_held_cycle_outlives_its_timeout_and_without_the_hold_it_would_not():
    """The ablation: the same wait without a hold is cut off by the timeout of the cycle."""
    model = scripted(REPAIR, budget=Budget(calls=0))
    _, running = await held(model)
    await asyncio.sleep(700)
    assert not running.done()
    running.cancel()

    async def sleeper(view, events):
        await asyncio.sleep(1000)

    result = await orchestrator(sleeper).run(pipeline())
    assert result.cycles[0].outcome == "timeout"


async def test_the_rest_of_the_plan_goes_on_while_the_budget_holds():
    plan = pipeline()
    for number in range(5):
        plan.add(Task(f"other-{number}", call=ok))
    model = scripted(REPAIR, budget=Budget(calls=0))
    runner, running = await held(model, plan)
    await asyncio.sleep(10)
    assert all(plan[f"other-{number}"].status == "completed" for number in range(5))
    model.go_on_without_editor("pipeline")
    assert (await running).state == "partially_failed"
    assert runner is not None


async def test_a_plan_that_goes_on_without_its_editor_asks_no_more():
    model = scripted(REPAIR, budget=Budget(calls=0), ask="all")
    _, running = await held(model)
    model.go_on_without_editor("pipeline", by="ann")
    result = await running
    assert model.asked == []
    assert result["publish"].status == "cancelled"
    assert {cycle.outcome for cycle in result.cycles} == {"empty"}


async def test_nobody_decides_and_the_plan_goes_on_after_its_wait():
    model = scripted(REPAIR, budget=Budget(calls=0, wait=5000))
    _, running = await held(model)
    result = await running
    assert result.state == "partially_failed"
    [entry] = [entry for entry in result.story() if entry.what == "editor continues"]
    assert "goes on without its editor" in entry.why
    assert 5000 <= result.plan.ended_at - result.plan.started_at < 5100


async def test_a_budget_raised_to_what_it_was_holds_the_plan_again_and_the_wait_ends():
    model = scripted(REPAIR, budget=Budget(calls=0, wait=5000))
    _, running = await held(model)
    await asyncio.sleep(1000)
    model.raise_budget("pipeline", "0calls", by="ann")
    result = await running
    told = [entry.why for entry in result.story() if entry.what == "editor continues"]
    assert ["the budget stays 0 calls, 500 tasks, decided by ann" in why for why in told] == [True, False]
    assert "the plan goes on without its editor" in told[1]
    assert 6000 <= result.plan.ended_at - result.plan.started_at < 6100


async def test_a_plan_with_the_id_of_an_earlier_one_is_another_plan():
    """The next run of a plan in memory has the same epochs; an answer about the first one would be a wrong one."""
    cancel = {"op": "cancel_task", "task_id": "publish", "reason": "no such file"}
    model = scripted([cancel], REPAIR, budget=Budget(calls=1))
    first = await orchestrator(model).run(pipeline())
    second = await orchestrator(model).run(pipeline())
    assert first["publish"].status == "cancelled"
    assert second["publish"].status == "completed"
    assert second.cycles[0].cost.calls == 1
    assert model.caller.prompts[1] == model.caller.prompts[0]
    assert len(await model.cassette.exchanges("pipeline")) == 2


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (Budget(dollars=0.0001), "$0.00 of $0.0001 are spent"),
        (Budget(tokens=500), "0 of 500 tokens are spent"),
        (Budget(seconds=0), "0 s of 0 s are spent"),
        (Budget(tasks=0), "the answer adds 1 task"),
    ],
)
async def test_each_limit_holds(budget, words):
    model = scripted(REPAIR, budget=budget)
    runner, running = await held(model)
    [cycle] = runner.cycles()
    assert words in cycle.on_hold
    model.raise_budget("pipeline", Budget(dollars=10, tokens=100_000, seconds=100, tasks=10))
    result = await running
    assert result["publish"].status == "completed"
    assert len(model.asked) == 1  # an answer that waits for its tasks is not asked for again


async def test_tasks_of_a_rejected_answer_are_not_counted():
    bad = [*add("one"), *add("one")]
    model = scripted(bad, REPAIR, budget=Budget(tasks=2))
    result = await orchestrator(model).run(pipeline())
    assert result["publish"].status == "completed"
    account = await model.cassette.account("pipeline")
    assert account.spent.tasks == 1


async def with_approvals(model, plan):
    """A plan in which an edit waits for a person: the orchestrator, its run, and the edit."""
    runner = orchestrator(model, approvals=[ApprovalRule.parse("destructive")])
    waits = asyncio.Event()
    runner.events.subscribe(lambda event: waits.set() if event.kind == "edit_waiting" else None, EditEvent)
    running = asyncio.create_task(runner.run(plan))
    await waits.wait()
    return runner, running, runner.approvals()[0]


@pytest.mark.parametrize("reason", ["", "not now"])
async def test_tasks_of_a_refused_answer_are_not_counted(reason):
    model = scripted(REPAIR, [], budget=Budget(tasks=1))
    runner, running, edit = await with_approvals(model, pipeline())
    assert (await model.cassette.account("pipeline")).spent.tasks == 1
    runner.refuse(edit.id, "ann", reason)
    assert (await running).state == "partially_failed"
    account = await model.cassette.account("pipeline")
    assert (account.spent.tasks, account.refusals) == (0, (edit.id,))


async def test_an_answer_that_waits_for_its_tasks_goes_on_when_another_one_is_refused():
    plan = pipeline()
    plan.add(Task("late", call=fails_after, inputs={"seconds": 50.0}))
    model = scripted(REPAIR, add("more"), [], budget=Budget(tasks=1))
    runner, running, edit = await with_approvals(model, plan)
    await asyncio.sleep(100)
    [cycle] = runner.cycles()
    assert "1 of 1 task is spent, and the answer adds 1 task" in cycle.on_hold
    runner.refuse(edit.id, "ann", "not now")
    result = await running
    assert result["more"].status == "completed"
    [entry] = [entry for entry in result.story() if entry.what == "editor continues"]
    assert "an edit was refused" in entry.why


class SlowCaller(ModelCaller):
    """A model that takes three seconds."""

    def __init__(self):
        super().__init__([SimpleNamespace(system="test", model_name="slow")], prices={"test:slow": Price(1.0, 1.0)})
        self.requests = 0

    async def _request(self, model, question, form, max_output, received):
        self.requests += 1
        await asyncio.sleep(3)
        raise AssertionError("it had one second")


async def test_a_call_takes_no_longer_than_the_budget_leaves():
    plan, caller = Constellation("slow"), SlowCaller()
    for number in range(3):
        plan.add(Task(f"bad-{number}", call=fails))
        plan.add(Task(f"below-{number}", call=ok), after=f"bad-{number}")
    model = ModelEditor("test:slow", caller=caller, budget=Budget(seconds=1, wait=60))
    await orchestrator(model).run(plan)
    account = await model.cassette.account("slow")
    assert account.spent.seconds == pytest.approx(1.0, abs=0.01)
    assert caller.requests == 1  # the other calls wait for this one, and then the time is spent


async def fails_after(seconds):
    await asyncio.sleep(seconds)
    raise ValueError("too late")


async def test_calls_that_overlap_do_not_spend_the_same_rest():
    plan = pipeline()
    for number in range(3):  # one after the other, so that each failure is a question of its own
        plan.add(Task(f"bad-{number}", call=fails_after, inputs={"seconds": 10.0 * number}))
    model = scripted([], seconds=50.0, budget=Budget(calls=2))
    runner, running = await held(model, plan)
    await asyncio.sleep(500)
    account = await model.cassette.account("pipeline")
    assert account.spent.calls == len(model.asked) <= 2
    model.go_on_without_editor("pipeline")
    await running
    assert runner is not None


# -- in a store --------------------------------------------------------------------------------------------------------


def stored(stage, caller, approvals=(), **options):
    fleet = stage.fleet()
    model = ModelEditor("test:scripted", caller=caller, fleet=fleet, **options)
    return stage.orchestrator(editor=model, approvals=approvals)


async def until_held(stage):
    """The account of the plan, as soon as it holds the plan."""
    for _ in range(1000):
        account = await read_account(stage.store, "pipeline")
        if account is not None and account.held_since is not None:
            return account
        await asyncio.sleep(1)
    raise AssertionError("it was never held")


async def test_a_stored_plan_is_held_with_a_notice_and_raised_through_the_store():
    async with staged() as stage:
        running = stage.spawn(stored(stage, ScriptedCaller(REPAIR), budget=Budget(calls=0)).run(pipeline()))
        account = await until_held(stage)
        assert account.higher_limits() == "1call"  # as it is read from the store
        notices = [notice for _, notice in await stage.store.notices()]
        [notice] = [notice for notice in notices if notice.kind == "budget"]
        assert "plan 'pipeline' waits: the budget of its editor is spent" in notice.message
        assert f"asterism plan budget pipeline --store {stage.store.url} --raise '1call';" in notice.message
        explanation = await ask_why(stage.fleet(), "pipeline", "publish")
        assert "the budget of its editor is spent" in str(explanation)
        await raise_budget(stage.fleet(), "pipeline", Budget(calls=3))
        result = await running
        assert result["publish"].status == "completed"
        names = {family.name: family for family in await plan_families(stage.store, 1e9)}
        assert names["asterism_editor_calls"].samples == {("pipeline",): 1}
        assert names["asterism_editor_tokens"].samples == {("pipeline",): 1100}
        stored_plan = await stage.load("pipeline")
        assert stored_plan.lock.history[0].cost.tokens == 1100


async def test_the_advice_of_a_held_plan_raises_the_limit_that_holds_it():
    async with staged() as stage:
        running = stage.spawn(stored(stage, ScriptedCaller(REPAIR), budget="1000tokens").run(pipeline()))
        account = await until_held(stage)
        advised = account.higher_limits()
        assert "tokens" in advised
        assert "tasks" not in advised
        await raise_budget(stage.fleet(), "pipeline", Budget.parse(advised))
        assert (await running)["publish"].status == "completed"


async def test_the_budget_survives_the_process_and_an_unfinished_call_counts_as_spent():
    async with staged() as stage:
        caller = ScriptedCaller(REPAIR)
        caller.gate = asyncio.Event()
        first = stored(stage, caller, budget=Budget(calls=1))
        await left(first.run(pipeline()), lambda: caller.asked, stage)
        account = await read_account(stage.store, "pipeline")
        assert account.committed.calls == 1
        caller.gate = None
        again = stage.spawn(stored(stage, caller, budget=Budget(calls=1)).run_stored("pipeline"))
        account = await until_held(stage)
        assert (account.spent.calls, dict(account.open)) == (1, {})
        assert len(caller.asked) == 1
        await go_on_without_editor(stage.fleet(), "pipeline")
        assert (await again).state == "partially_failed"


async def test_an_answer_that_was_paid_for_is_not_asked_for_again():
    """The process dies between the answer and the edit: the next owner finds the answer in the cassette."""
    async with staged() as stage:
        caller = ScriptedCaller(REPAIR)
        first = stored(stage, caller)
        model = first.options.editor
        change, answered = model.cassette.change, asyncio.Event()

        async def then_die(plan, step, exchange=None, notice=""):
            account = await change(plan, step, exchange, notice)
            if exchange is not None:
                answered.set()
                await asyncio.Event().wait()  # the answer is in the store, and never reaches the plan
            return account

        model.cassette.change = then_die
        await left(first.run(pipeline()), answered.is_set, stage)
        result = await stored(stage, caller).run_stored("pipeline")
        assert result["publish"].status == "completed"
        assert len(caller.asked) == 1
        [exchange] = await StoreCassette(stage.store).exchanges("pipeline")
        assert result.editor_cost == exchange.cost
        assert (exchange.cost.calls, exchange.cost.tokens) == (1, 1100)


async def test_tasks_of_an_answer_that_is_applied_by_the_next_owner_are_counted_once():
    async with staged() as stage:
        caller = ScriptedCaller(REPAIR)
        first = stored(stage, caller, budget=Budget(tasks=1))
        model = first.options.editor
        count, counted = model._count_tasks, asyncio.Event()

        async def then_die(*arguments):
            await count(*arguments)
            counted.set()
            await asyncio.Event().wait()

        model._count_tasks = then_die
        await left(first.run(pipeline()), counted.is_set, stage)
        result = await stored(stage, caller, budget=Budget(tasks=1)).run_stored("pipeline")
        assert result["publish"].status == "completed"
        assert (await read_account(stage.store, "pipeline")).spent.tasks == 1


async def test_tasks_of_an_answer_that_is_refused_while_no_process_runs_the_plan_are_not_counted():
    async with staged() as stage:
        caller, rules = ScriptedCaller(REPAIR, []), [ApprovalRule.parse("destructive")]
        first = stored(stage, caller, budget=Budget(tasks=1), approvals=rules)
        heard = heard_by(first)
        await left(first.run(pipeline()), lambda: "edit_waiting" in [event.kind for event in heard], stage)
        await refuse_edit(stage.fleet(), "pipeline", 1, "not now")
        assert (await read_account(stage.store, "pipeline")).spent.tasks == 1
        await stored(stage, caller, budget=Budget(tasks=1), approvals=rules).run_stored("pipeline")
        assert (await read_account(stage.store, "pipeline")).spent.tasks == 0


def ended_tasks(heard):
    return [(event.kind, event.task_id) for event in heard if isinstance(event, TaskEvent)]


async def test_what_happened_before_a_crash_is_told_with_the_next_question():
    """An answer of the process before is used with its question. What happened since is not in that question."""
    async with staged() as stage:
        plan = pipeline()
        plan.add(Task("aside", call=fails_after, inputs={"seconds": 20.0}))
        plan.add(Task("late", call=fails_after, inputs={"seconds": 90.0}))
        caller = ScriptedCaller(REPAIR, [])
        first = stored(stage, caller, ask="tasks=test,late")
        model = first.options.editor
        change = model.cassette.change

        async def never_answers(name, step, exchange=None, notice=""):
            account = await change(name, step, exchange, notice)
            if exchange is not None:
                await asyncio.Event().wait()
            return account

        model.cassette.change = never_answers
        heard = heard_by(first)
        await left(first.run(plan), lambda: ("task_failed", "aside") in ended_tasks(heard), stage)
        result = await stored(stage, caller, ask="tasks=test,late").run_stored("pipeline")
        assert result["publish"].status == "completed"
        assert len(caller.asked) == 2
        assert "- 'aside' failed" in caller.prompts[1].partition("# Since your last call")[2]


async def test_the_account_and_the_exchanges_go_with_the_plan():
    async with staged() as stage:
        await stored(stage, ScriptedCaller(REPAIR)).run(pipeline())
        assert await StoreCassette(stage.store).exchanges("pipeline")
        [head] = await stage.store.registers("plan/")
        await retention._remove_plan(stage.store, head)
        assert await StoreCassette(stage.store).exchanges("pipeline") == []
        assert await read_account(stage.store, "pipeline") is None


@pytest.mark.parametrize("seed", range(3))
async def test_whenever_processes_die_the_budget_holds_and_no_answer_is_paid_twice(seed):
    await die_and_continue(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3, 53))
async def test_many_deaths(seed):
    await die_and_continue(seed)


async def die_and_continue(seed):
    """Processes are stopped at random moments, one after the other; the last one runs the plan to its end."""
    chance = random.Random(seed)
    async with staged() as stage:
        plan = Constellation("pipeline")
        for number in range(6):
            plan.add(Task(f"bad-{number}", call=fails))
            plan.add(Task(f"below-{number}", call=ok), after=f"bad-{number}")
        answered = []
        caller = ScriptedCaller(lambda question: answered.append(question.text) or [], seconds=2.0)
        running = stage.spawn(stored(stage, caller, budget=Budget(calls=40)).run(plan))
        for _ in range(4):
            await asyncio.sleep(chance.uniform(0.0, 4.0))
            if running.done():
                break
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            running = stage.spawn(stored(stage, caller, budget=Budget(calls=40)).run_stored("pipeline"))
        result = await running
        account = await read_account(stage.store, "pipeline")
        exchanges = await StoreCassette(stage.store).exchanges("pipeline")
        assert result.state in ("failed", "partially_failed")
        assert len(caller.asked) <= account.committed.calls <= 40
        assert len({(exchange.about, exchange.question) for exchange in exchanges}) == len(exchanges)
