"""``@plan.task``: functions as tasks, which come after the tasks that their parameters name."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.core.errors import DuplicateTask, InvalidTask
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Dependency, Priority, Task


def test_the_parameters_of_a_function_are_its_dependencies() -> None:
    plan = Constellation("release")

    @plan.task
    def fetch() -> list[str]:
        return []

    @plan.task(retries=2, priority="high")
    def build(fetch: list[str]) -> int:
        return len(fetch)

    @plan.task(id="the-report", after={"build": "completion"}, inputs={"to": "all"})
    def report(fetch: Any, to: str, results: Any, logger: Any, folder: Any, tick: Any, copies: int = 1) -> None: ...

    assert isinstance(build, Task)
    assert (build.id, build.retries, build.priority) == ("build", 2, Priority.HIGH)
    assert build.call is not None
    assert build.call([1, 2]) == 2  # type: ignore[operator]
    assert list(plan.dependencies) == [
        Dependency("fetch", "build"),
        Dependency("build", "the-report", "completion"),
        Dependency("fetch", "the-report"),
    ]


def test_a_parameter_adds_no_second_dependency_on_the_same_task() -> None:
    plan = Constellation()
    plan.add(Task("disk"))
    plan.add(Task("copy"), after="disk")

    @plan.task(handles="copy")
    def mend(copy: Any) -> None: ...

    @plan.task(teardown="disk")
    def free(disk: Any) -> None: ...

    @plan.task(after={"copy": {"on": "failure", "when": "status == 'failed'"}})
    def tell(copy: Any) -> None: ...

    assert list(plan.dependencies)[1:] == [
        Dependency("copy", "mend", "failure", None, True),
        Dependency("disk", "free", "teardown"),
        Dependency("copy", "tell", "failure", "status == 'failed'"),
    ]


def test_arguments_of_any_number_name_no_task() -> None:
    plan = Constellation()

    @plan.task
    def everything(*args: Any, **results: Any) -> None: ...

    assert not list(plan.dependencies)


def test_a_parameter_that_nothing_fills_is_refused() -> None:
    plan = Constellation()
    with pytest.raises(InvalidTask, match="task 'build': the parameter 'fetch' has no value: it is neither a task"):

        @plan.task
        def build(fetch: Any) -> None: ...

    assert len(plan) == 0


def test_a_function_without_a_name_needs_an_id() -> None:
    class Step:
        def __call__(self) -> int:
            return 1

    plan = Constellation()
    with pytest.raises(InvalidTask, match="id is empty"):
        plan.task(Step())
    assert plan.task(id="step")(Step()).id == "step"
    with pytest.raises(DuplicateTask):
        plan.task(id="step")(Step())


def test_the_type_of_a_result_is_for_type_checkers() -> None:
    assert Task[int]("count", argv=("wc", "-l")) == Task("count", argv=("wc", "-l"))
