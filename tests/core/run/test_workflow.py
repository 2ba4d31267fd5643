"""A workflow says what is executed, and everything that is wrong with it is said at once."""

from __future__ import annotations

import json
import os.path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asterism.core.errors import AsterismError, InvalidWorkflow, NotJson
from asterism.core.plan.task import ACTIONS, Task
from asterism.core.run import transitions
from asterism.core.run.placement import STRATEGIES
from asterism.core.run.work import DEFAULTS, MAX_NUMBER, Work, Workflow, ambiguous_timeout, work_of

unhurried = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
NAMES = [*Workflow.__struct_fields__]


def made(**options: Any) -> Workflow:
    return Workflow(**{"name": "w", "shell": "true", **options})


# -- what is valid -----------------------------------------------------------------------------------------------------

texts = st.text(min_size=1, max_size=8).filter(str.isprintable)
seconds = st.one_of(st.integers(1, MAX_NUMBER), st.floats(0.001, MAX_NUMBER))
whole = st.integers(0, MAX_NUMBER)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
json_objects = st.dictionaries(st.text(max_size=5), json_values, max_size=3)
actions = st.one_of(
    st.fixed_dictionaries({"call": st.builds("{}:{}".format, texts, texts)}),
    st.fixed_dictionaries({"argv": st.lists(st.text(max_size=8), min_size=1, max_size=3)}),
    st.fixed_dictionaries({"shell": st.text(min_size=1, max_size=8)}),
    st.fixed_dictionaries({"plugin": st.builds(lambda work: {"container": work}, json_objects)}),
    st.fixed_dictionaries({"http": st.builds(lambda rest, url: {**rest, "url": url}, json_objects, st.text())}),
)
others = st.fixed_dictionaries(
    {"name": texts, "heartbeat": st.floats(0.1, 1000), "heartbeat_timeout": st.floats(2000, MAX_NUMBER)},
    optional={
        "env": json_objects,
        "cwd": st.text(min_size=1, max_size=8),
        "description": st.text(max_size=8),
        "needs": st.lists(texts, max_size=3),
        "wants": st.lists(texts, max_size=3),
        "device": texts,
        "requires": st.text(min_size=1, max_size=8).filter(str.strip),
        "prefers": st.text(min_size=1, max_size=8).filter(str.strip),
        "strategy": st.sampled_from(sorted(STRATEGIES)),
        "orchestration": st.booleans(),
        "priority": st.integers(-1_000_000, 1_000_000),
        "preemptible": st.booleans(),
        "keep": st.sampled_from(["epoch", "original"]),
        "assignment_timeout": seconds,
        "claim_timeout": seconds,
        "no_device_timeout": seconds,
        "timeout": st.none() | seconds,
        "retries": whole,
        "losses": whole,
        "rounds": st.integers(1, 1_000_000),
        "backoff": st.just(0) | seconds,
        "backoff_most": st.just(0) | seconds,
        "version": whole,
    },
)
workflows = st.builds(lambda action, rest: Workflow(**{**action, **rest}), actions, others)


@unhurried
@given(workflows)
def test_a_workflow_survives_json(flow: Workflow) -> None:
    data = json.loads(json.dumps(flow.to_json(), allow_nan=False))
    again = Workflow.from_json(data)
    assert again == flow
    assert again.to_json() == data


@unhurried
@given(workflows)
def test_only_what_differs_from_the_defaults_is_written(flow: Workflow) -> None:
    data = flow.to_json()
    assert all(name == "name" or getattr(flow, name) != DEFAULTS[name] for name in data)
    assert set(data) >= {name for name in DEFAULTS if getattr(flow, name) != DEFAULTS[name]}


@unhurried
@given(st.dictionaries(st.sampled_from([*NAMES, "nonsense"]), json_values, max_size=4))
def test_any_object_is_a_workflow_or_is_refused(nonsense: dict[str, Any]) -> None:
    """Never anything else, such as a TypeError from deep within."""
    try:
        flow = Workflow.from_json({"name": "w", "shell": "true", **nonsense})
    except InvalidWorkflow:
        return
    assert Workflow.from_json(flow.to_json()) == flow
    assert "nonsense" not in nonsense


def test_the_least_that_is_needed_is_a_name_and_something_to_execute() -> None:
    flow = Workflow("w", shell="true")
    assert {name: getattr(flow, name) for name in DEFAULTS} == {**DEFAULTS, "shell": "true"}
    assert flow.to_json() == {"name": "w", "shell": "true"}


def test_the_defaults_are_those_of_the_seed() -> None:
    flow = made()
    assert (flow.assignment_timeout, flow.claim_timeout, flow.heartbeat, flow.heartbeat_timeout) == (
        30.0,
        60.0,
        30.0,
        90.0,
    )
    assert flow.strategy == "score"


def test_words_become_what_they_mean() -> None:
    flow = Workflow("w", argv=["ffmpeg", "-i", "{file}"], needs=["gpu"], env={"A": "1"})  # type: ignore[arg-type]
    assert (flow.argv, flow.needs) == (("ffmpeg", "-i", "{file}"), frozenset({"gpu"}))
    with pytest.raises(TypeError):
        flow.env["A"] = "2"  # type: ignore[index]
    with pytest.raises(AttributeError):
        flow.retries = 9  # type: ignore[misc]


def test_a_function_is_written_as_its_import_path() -> None:
    flow = Workflow("w", call=os.path.basename)
    data = flow.to_json()
    assert data["call"].endswith("path:basename")
    assert Workflow.from_json(data).call == data["call"]


def test_a_function_without_an_import_path_cannot_be_written() -> None:
    with pytest.raises(NotJson, match="has no import path"):
        Workflow("w", call=lambda: None).to_json()


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"env": {"A": {1}}}, r"env of workflow 'w'\.A is a set"),
        (
            {"http": {"url": "http://x", "json": [1, float("nan")]}, "shell": None},
            r"http of workflow 'w'\.json\[1\] is nan",
        ),
    ],
)
def test_what_is_not_json_is_named_with_its_place(options: dict[str, Any], where: str) -> None:
    with pytest.raises(NotJson, match=where):
        made(**options).to_json()


def test_a_version_is_another_workflow_that_is_otherwise_the_same() -> None:
    flow = made(retries=3)
    assert flow.at_version(4) == made(retries=3, version=4)
    assert flow.version == 0


def test_a_run_of_it_executes_what_it_says_with_the_inputs_of_the_run() -> None:
    flow = Workflow("w", argv=("echo", "{word}"), env={"A": "1"}, cwd="films", retries=4)
    expected = Task("r1", argv=("echo", "{word}"), inputs={"word": "hi"}, env={"A": "1"}, cwd="films")
    assert flow.task("r1", {"word": "hi"}) == expected


def test_the_wait_before_the_next_try_doubles_up_to_its_cap() -> None:
    flow = made(backoff=1.5, backoff_most=10.0)
    assert [flow.delay(tries) for tries in range(6)] == [0.0, 1.5, 3.0, 6.0, 10.0, 10.0]
    assert flow.delay(10**9) == 10.0
    assert made(backoff=0).delay(5) == 0.0
    assert made(backoff=MAX_NUMBER, backoff_most=MAX_NUMBER).delay(10**9) == MAX_NUMBER


# -- what is not -------------------------------------------------------------------------------------------------------

NO_SECONDS = [0, -1, -0.5, float("nan"), float("inf"), MAX_NUMBER + 1, 10**400, True, "30", None, [30]]
NO_WAIT = [value for value in NO_SECONDS if value != 0]
NO_COUNT = [-1, 1.0, True, "3", None, MAX_NUMBER + 1, 10**400]
NO_EXPRESSION = ["", "  ", 5, ["cpu > 1"]]
NO_FLAG = [0, 1, "yes", None]
WRONG: dict[str, tuple[list[Any], str]] = {
    "name": (["", "a\nb", "\x00", 7, None, ["w"], "w" * 501], "the name is a non-empty string of at most"),
    "call": (["print", 7], "call must be a function or 'package.module:function'"),
    "argv": ([[], ["a", 1], "ls -l", 7], "argv"),
    "shell": ([7, ["ls"]], "shell must be text"),
    "http": ([{}, {"url": 7}, [], "http://x"], "http "),
    "env": ([[], "A=1", None], "env must be a mapping"),
    "cwd": ([7], "cwd must be text"),
    "description": ([None, 7], "description must be text"),
    "needs": ([[1], 7, None], "needs"),
    "wants": ([[1], 7, None], "wants is a list of strings"),
    "device": (["", 7], "device "),
    "requires": (NO_EXPRESSION, "requires is an expression over a device's profile"),
    "prefers": (NO_EXPRESSION, "prefers is an expression over a device's profile"),
    "strategy": (["", "best", None, 7, ["score"], {}], "strategy is one of score, round_robin, capability_match"),
    "orchestration": (NO_FLAG, "orchestration is true or false"),
    "priority": ([1.0, "high", True, None, 1_000_001, -1_000_001], "priority is a whole number between -1,000,000 and"),
    "preemptible": (NO_FLAG, "preemptible is true or false"),
    "keep": ([None, 1, "", "last"], "keep is one of epoch, original"),
    "heartbeat": (NO_SECONDS, "heartbeat is a number of seconds above 0"),
    "heartbeat_timeout": (NO_SECONDS, "heartbeat_timeout is a number of seconds above 0"),
    "assignment_timeout": (NO_SECONDS, "assignment_timeout is a number of seconds above 0"),
    "claim_timeout": (NO_SECONDS, "claim_timeout is a number of seconds above 0"),
    "no_device_timeout": (NO_SECONDS, "no_device_timeout is a number of seconds above 0"),
    "timeout": ([value for value in NO_SECONDS if value is not None], "timeout is a number of seconds above 0"),
    "retries": (NO_COUNT, "retries is a whole number, 0 or more"),
    "losses": (NO_COUNT, "losses is a whole number, 0 or more"),
    "rounds": ([*NO_COUNT, 0], "rounds is a whole number, 1 or more"),
    "backoff": ([*NO_WAIT, False], "backoff is a number of seconds, 0 or more"),
    "backoff_most": ([*NO_WAIT, False], "backoff_most is a number of seconds, 0 or more"),
    "version": (NO_COUNT, "version is a whole number, 0 or more"),
    "agent": ([{}, {"description": 7}, [], 7], "agent"),
    "uses": ([[], "warehouse", None, {"a b": 1}, {"a": 0}], "uses"),
    "outputs": ([[], 7, {"a": "/x"}, {"a b": "x"}, {"a": 7}], "output"),
    "plugin": ([[], 7, {}, {"a": {}, "b": {}}, {"A b": {}}, {"a": 7}, {"a": {7: 8}}], "plug"),
}
"""Field -> values it must not have -> what is said about each."""


def test_every_field_is_judged() -> None:
    assert set(WRONG) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_makes_no_sense_is_refused_and_named(name: str) -> None:
    values, complaint = WRONG[name]
    for value in values:
        action = {} if name in ACTIONS else {"shell": "true"}
        with pytest.raises(InvalidWorkflow) as caught:
            Workflow(**{"name": "w", **action, name: value})
        assert complaint in str(caught.value), value
        with pytest.raises(InvalidWorkflow):
            Workflow.from_json({"name": "w", **action, name: value})


def test_a_workflow_that_executes_nothing_is_none() -> None:
    with pytest.raises(InvalidWorkflow, match="workflow 'w': it executes nothing: give one of call, argv, shell, http"):
        Workflow("w")


def test_a_workflow_executes_one_thing() -> None:
    with pytest.raises(InvalidWorkflow, match="only one of call, argv, shell, http, agent, plugin may be set"):
        Workflow("w", shell="true", argv=("true",))


def test_one_late_heartbeat_must_not_cost_a_device_its_work() -> None:
    assert made(heartbeat=45.0, heartbeat_timeout=90.0).heartbeat_timeout == 90.0
    with pytest.raises(
        InvalidWorkflow, match=r"heartbeat_timeout \(90 s\) must be at least twice heartbeat \(45\.5 s\)"
    ):
        made(heartbeat=45.5, heartbeat_timeout=90)


def test_no_workflow_has_devices_do_nothing_but_beat() -> None:
    """A thousand heartbeats a second are what each of them made of a millionth of a second."""
    assert made(heartbeat=0.1, heartbeat_timeout=0.2).heartbeat == 0.1
    with pytest.raises(InvalidWorkflow, match=r"heartbeat is at least 0\.1 s"):
        made(heartbeat=0.000001, heartbeat_timeout=90.0)


def test_everything_that_is_wrong_is_said_in_one_message() -> None:
    wrong = {name: values[0] for name, (values, _) in WRONG.items() if name not in ACTIONS}
    wrong |= {"heartbeat": 60, "heartbeat_timeout": 90, "surprise": 1, "wonder": 2}
    with pytest.raises(InvalidWorkflow) as caught:
        Workflow.from_json(wrong)
    message = str(caught.value)
    for name in wrong:
        if name not in ("heartbeat", "surprise", "wonder"):
            assert name in message, name
    assert "it executes nothing" in message
    assert "heartbeat_timeout (90 s) must be at least twice heartbeat (60 s)" in message
    assert message.endswith("no such field: surprise, wonder")


def test_an_unknown_field_alone_is_told_too() -> None:
    with pytest.raises(InvalidWorkflow, match="workflow 'w': no such field: 7, argvv"):
        Workflow.from_json({"name": "w", "shell": "true", "argvv": [], 7: 8})  # type: ignore[dict-item]


@pytest.mark.parametrize("data", [None, 7, "w", [], {}, {"shell": "true"}, ["name"], {"x" * 1000: 1}])
def test_what_is_no_workflow_at_all_is_refused_in_few_words(data: Any) -> None:
    with pytest.raises(InvalidWorkflow, match="a workflow is an object with a 'name', not ") as caught:
        Workflow.from_json(data)
    assert len(str(caught.value)) < 300


def test_a_name_with_a_colon_does_not_garble_the_message() -> None:
    with pytest.raises(InvalidWorkflow) as caught:
        Workflow("a: b", shell="true", argv=("true",))
    assert str(caught.value) == "workflow 'a: b': only one of call, argv, shell, http, agent, plugin may be set"


def test_a_bad_workflow_is_an_error_of_the_tree_and_a_value_error() -> None:
    assert issubclass(InvalidWorkflow, AsterismError)
    assert issubclass(InvalidWorkflow, ValueError)


def test_needs_are_written_in_order() -> None:
    assert Workflow("w", shell="true", needs=frozenset({"soap", "gpu"})).to_json()["needs"] == ["gpu", "soap"]


@unhurried
@given(workflows)
def test_a_record_is_read_as_it_was_written(flow: Workflow) -> None:
    assert Workflow.from_json(flow.to_json()) == flow


@pytest.mark.parametrize("data", [5, None, [], "w"])
def test_a_record_that_is_no_object_is_refused(data: Any) -> None:
    with pytest.raises(InvalidWorkflow, match="a workflow is an object with a 'name'"):
        Workflow.from_json(data)


def test_a_timeout_that_meant_something_else_once_is_named() -> None:
    assert "Give heartbeat_timeout, too" in str(ambiguous_timeout({"timeout", "heartbeat"}))
    assert ambiguous_timeout({"timeout"}) is None


# -- the work of a run -------------------------------------------------------------------------------------------------


def test_one_capability_is_a_list_of_one() -> None:
    assert made(wants="gpu").wants == frozenset({"gpu"})


@pytest.mark.parametrize("data", [[], "true", None])
def test_work_that_is_no_object_is_refused(data: Any) -> None:
    with pytest.raises(InvalidWorkflow, match="the work of a run is an object"):
        Work.from_json(data)


def test_work_that_is_nested_too_deep_is_refused() -> None:
    with pytest.raises(InvalidWorkflow, match="nested too deep"):
        work_of('{"shell": "true", "env": {"A": ' + "[" * 100_000 + "]" * 100_000 + "}}")


def test_work_from_a_peer_has_no_rules() -> None:
    plain = made().work
    assert plain.without_rules is plain
    ruled = made(requires="device.slots > 1", prefers="true").work
    assert (ruled.without_rules.requires, ruled.without_rules.prefers) == (None, None)


def test_a_run_of_work_without_a_template_says_where_it_comes_from() -> None:
    run = transitions.create("r1", made().work, {}, by="ann", now=0.0, origin=("plan:p", 0))
    assert (run.workflow, run.version, run.work) == ("plan:p", 0, made().work)
