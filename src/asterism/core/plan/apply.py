"""Apply an edit batch to a plan: all of it or nothing, with every violation reported.

The edits are carried out in order on the live plan; each is checked against the result of those before it. An edit that
breaks a rule is recorded as a violation and skipped, so that one answer names *every* violation. If there is any, all
changes are undone, newest first. This is one synchronous call: no other code sees an intermediate state.

A batch that adds a task to a plan that has ended reopens it (plan_end.py), as part of the same step.

A batch is stale if an accepted batch after its ``base_version`` changed a task or dependency that it names. Progress
of tasks does not make it stale; I3 decides whether a task may still be changed.

The accepted batches that can still be undone are in an ``UndoStack``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from asterism.core.errors import (
    CycleFound,
    DuplicateTask,
    EditRejected,
    InvalidTask,
    UnknownTask,
    Violation,
    error_text,
    safe_repr,
)
from asterism.core.plan import inherited_priority, joins, plan_end, teardowns
from asterism.core.plan.edits import (
    AddDependency,
    AddTask,
    CancelTask,
    Edit,
    EditBatch,
    Key,
    RemoveDependency,
    RemoveTaint,
    RemoveTask,
    UpdateDependency,
    UpdateTask,
    addition_of,
)
from asterism.core.plan.graph import Graph, is_modifiable
from asterism.core.plan.group_elements import is_marked
from asterism.core.plan.node import Node, descendants, provisional_below
from asterism.core.plan.status import ENDED_STATES, PENDING, TERMINAL, TRANSITIONS, ConstellationState
from asterism.core.plan.task import Dependency, Task, differences, lane_of
from asterism.core.plan.task_files import files_of_inputs, outputs_of, source_problem
from asterism.core.plan.topological_order import parents_first
from asterism.core.record import Record, replace

NO_AUTHOR = "somebody"
"""The author of a batch that names none. Replay of a journal repeats this word, so it never changes."""


class Applied(Record):
    """The result of an accepted batch. Applying ``inverse`` undoes it; the inverse of that redoes it.

    ``revoked`` and ``cancelled`` are the nodes that it revoked or cancelled, ``stopped`` the executions (task, epoch)
    that must stop. ``inverse`` is None if a task was cancelled or the taint removed: that cannot be undone. ``reverse``
    are the edits that would restore the structure all the same, in the order of the changes that they revert."""

    version: int
    batch: EditBatch
    inverse: EditBatch | None
    stopped: tuple[tuple[str, int], ...] = ()
    revoked: tuple[Node, ...] = ()
    cancelled: tuple[Node, ...] = ()
    reverse: tuple[Edit, ...] = ()


def stale_keys(graph: Graph, base_version: int | None, names: Iterable[Key]) -> list[Key]:
    """The keys among ``names`` that an accepted batch after ``base_version`` has changed."""
    if base_version is None or base_version >= graph.version:
        return []
    return [key for key in names if graph.touched.get(key, 0) > base_version]


def apply(graph: Graph, batch: EditBatch, now: float) -> Applied:
    """See the module. Raises EditRejected. An empty batch changes nothing, not even the version."""
    attempt = carried_out(graph, batch, now)
    return Applied(graph.version, batch, batch) if attempt is None else attempt.conclude(batch, now)


def check(graph: Graph, batch: EditBatch, now: float) -> None:
    """Raise EditRejected if ``apply`` would reject the batch now. Changes nothing."""
    attempt = carried_out(graph, batch, now)
    if attempt is not None:
        attempt.roll_back()


def carried_out(
    graph: Graph, batch: EditBatch, now: float, make: Callable[[Graph, int | None], Attempt] | None = None
) -> Attempt | None:
    """The attempt with all changes made; None for an empty batch. Raises EditRejected, with nothing changed."""
    ended = graph.state in ENDED_STATES
    if ended and (problem := _not_reopened(graph, batch)) is not None:
        raise EditRejected([Violation(None, "ended", problem)])
    if batch.base_version is not None and type(batch.base_version) is not int:
        raise EditRejected([Violation(None, "malformed", f"base_version is a number, not {batch.base_version!r}")])
    if batch.base_version is not None and batch.base_version > graph.version:
        words = f"base_version {batch.base_version} is ahead of the plan, which is at version {graph.version}"
        raise EditRejected([Violation(None, "malformed", words)])
    if not batch.edits:
        return None
    attempt = (make or Attempt)(graph, batch.base_version)
    try:
        if ended:
            attempt.undo.append(plan_end.reopen(graph, (), now, f"by an edit of {batch.author or NO_AUTHOR}"))
        for index, edit in enumerate(batch.edits):
            attempt.carry_out(index, edit)
        attempt.check_severed()
        attempt.check_files(batch)
        attempt.check_teardowns(batch)
        if attempt.violations:
            raise EditRejected(attempt.violations)
    except BaseException:  # also after an unexpected error: half a batch is never left
        attempt.roll_back()
        raise
    return attempt


def _not_reopened(graph: Graph, batch: EditBatch) -> str | None:
    """Why a batch does not reopen a plan that has ended; None if it does, by adding a task."""
    if graph.state is ConstellationState.CANCELLED:
        return f"plan {graph.id!r} was cancelled, for good"
    if graph.owner is not None:
        return f"plan {graph.id!r} has just ended ({graph.state}); edit it again when its orchestrator has left it"
    if any(isinstance(edit, AddTask) for edit in batch.edits):
        return None
    return f"plan {graph.id!r} has ended ({graph.state}); only an edit that adds a task reopens it"


class Attempt:
    """A batch that is being applied: the changes so far, how to undo them, and the violations."""

    def __init__(self, graph: Graph, base_version: int | None) -> None:
        self.graph, self.base_version = graph, base_version
        self.violations: list[Violation] = []
        self.undo: list[Callable[[], Any]] = []
        self.inverse: list[Edit] = []
        self.touched: set[Key] = set()
        self.severed: dict[str, dict[str, tuple[int, Dependency]]] = {}  # target -> source: edges into removed tasks
        self.relinked: set[tuple[str, str]] = set()  # edges that a replacement took over implicitly
        self.rewired: set[tuple[str, str]] = set()  # edges that the batch added
        self.changed: dict[str, Node] = {}  # nodes whose counters may have changed
        self.to_revoke: list[Node] = []  # provisional nodes that an accepted batch revokes
        self.cancelled: list[tuple[Node, str]] = []
        self.added: set[str] = set()
        self.removed: list[Node] = []
        self.moved: set[Node] = set()  # nodes whose position in the queue has changed
        self.renewed: list[Node] = []  # nodes that wait for something else now
        self.rewritten: set[str] = set()  # tasks that were added or changed
        self.outputs_changed: set[str] = set()
        self.marked: list[str] = []  # tasks that have run before and are untrusted now
        self.irreversible = False

    def violate(self, index: int | None, rule: str, message: str) -> None:
        self.violations.append(Violation(index, rule, message))

    def carry_out(self, index: int, edit: Edit) -> None:
        problem = _malformed(edit)
        if problem is not None:
            self.violate(index, "malformed", problem)
            return
        for key in stale_keys(self.graph, self.base_version, edit.names()):
            self.violate(index, "stale", _stale_message(self.graph, self.base_version, key))
        carry = _HANDLERS[type(edit)]
        try:
            carry(self, index, edit)
        except UnknownTask as error:
            self.violate(index, "unknown_task", f"{error}; it is named in: {edit}")
        except DuplicateTask as error:
            self.violate(index, "duplicate_task", str(error))
        except CycleFound as error:
            self.violate(index, "cycle", str(error))
        except InvalidTask as error:
            self.violate(index, "invalid", str(error))
        except _Refused as error:
            self.violate(index, error.rule, str(error))
        except Exception as error:  # an unforeseen malformed edit is a violation, not a crash
            self.violate(index, "invalid", f"the edit cannot be carried out: {error_text(error)}")

    # -- primitives: each makes one change, and records how to undo and how to invert it -------------------------------

    def _insert(self, task: Task) -> None:
        graph, node = self.graph, Node(task, self.graph.order.fresh())
        graph.insert(node)
        self.undo.append(lambda: graph.discard(node))
        self.added.add(task.id)
        self.rewritten.add(task.id)
        self._touch(node, task.id)
        self.inverse.append(RemoveTask(task.id))

    def _delete(self, node: Node) -> None:
        del self.graph.nodes[node.id]
        self.graph.records.remove(node)
        self.removed.append(node)  # it leaves the counts when the batch is accepted: it may still have to be revoked
        joins.discount_task(self.graph, node.task)

        def undo() -> None:
            self.graph.nodes[node.id] = node
            self.graph.records.add(node)
            joins.count_task(self.graph, node.task)

        self.undo.append(undo)
        self.changed.pop(node.id, None)
        self.touched.add(node.id)
        self.inverse.append(AddTask(node.task))

    def _replace(self, node: Node, task: Task) -> None:
        before, node.task = node.task, task
        self.graph.records.mark(node)
        if (before.priority, lane_of(before), before.approval) != (task.priority, lane_of(task), task.approval):
            self.moved.add(node)
        self._ranked(node, before)
        if [*outputs_of(before)] != [*outputs_of(task)]:
            self.outputs_changed.add(node.id)
        if before.wait_for != task.wait_for or before.approval is not None or task.approval is not None:
            self.renewed.append(node)
        joins.replaced(self.graph, node, before)
        if is_marked(task):
            self.graph.untrusted[node.id] = None
            if task.untrusted and not before.untrusted and node.attempts:  # an editor has read what it made before
                self.marked.append(node.id)

        def undo() -> None:
            node.task = before
            self.graph.records.mark(node)
            self._ranked(node, task)
            joins.replaced(self.graph, node, task)

        self.undo.append(undo)
        self.rewritten.add(node.id)
        self._touch(node, node.id)
        self.inverse.append(UpdateTask(node.id, **differences(task, before)))

    def _ranked(self, node: Node, before: Task) -> None:
        """The priority or the estimate of a node may have changed."""
        self.graph.rerank(node)
        if node.task.priority != before.priority:
            inherited_priority.refresh(self.graph, node)

    def _link(self, dependency: Dependency) -> None:
        graph = self.graph
        graph.link(dependency)
        self.undo.append(lambda: graph.unlink(dependency))
        self._touch(graph.nodes[dependency.target], (dependency.source, dependency.target))
        self.inverse.append(RemoveDependency(dependency.source, dependency.target))

    def _unlink(self, dependency: Dependency) -> None:
        graph, target = self.graph, self.graph.nodes[dependency.target]
        order = tuple(target.parents)
        verdict = graph.unlink(dependency)
        self.relinked.discard((dependency.source, dependency.target))

        def undo() -> None:
            graph.link(dependency, verdict)
            target.parents = {source: target.parents[source] for source in order}

        self.undo.append(undo)
        self._touch(graph.nodes[dependency.target], (dependency.source, dependency.target))
        self.inverse.append(addition_of(dependency))

    def _touch(self, node: Node, key: Key) -> None:
        self.changed[node.id] = node
        self.touched.add(key)

    # -- edits ---------------------------------------------------------------------------------------------------------

    def _modifiable(self, task_id: str) -> Node:
        """The node, if I3 allows it to change. A provisional node will be revoked, with those below it."""
        node = self.graph.node(task_id)
        if not is_modifiable(node):
            hint = "; use cancel_task to stop it" if node.status == "running" else ""
            raise _Refused(
                "immutable",
                f"task {task_id!r} is {node.status}: neither it nor its dependencies can change{hint}",
            )
        if node.provisional:
            self.to_revoke.extend(provisional_below(node))
        return node

    def add_task(self, index: int, edit: AddTask) -> None:
        task_id = edit.task.id
        if task_id in self.graph.nodes:
            raise DuplicateTask(task_id)
        self._insert(self._checked_work(edit.task))
        if any(node.id == task_id for node in self.removed):
            self._take_over(task_id)

    def _take_over(self, task_id: str) -> None:
        """A new task with the id of a removed one takes over its dependents."""
        for target, sources in self.severed.items():
            if task_id in sources:
                self._link(sources.pop(task_id)[1])
                self.relinked.add((task_id, target))

    def remove_task(self, index: int, edit: RemoveTask) -> None:
        node = self._modifiable(edit.task_id)
        if edit.dependents == "remove":
            farthest_first = [self._modifiable(below.id) for below in parents_first(descendants(node))[::-1]]
            unseen: list[Key] = [below.id for below in farthest_first]
            unseen += [(source, below.id) for below in farthest_first for source in below.parents]
            for key in stale_keys(self.graph, self.base_version, unseen):  # the edit names all of them implicitly
                self.violate(index, "stale", _stale_message(self.graph, self.base_version, key))
            for below in farthest_first:
                self._take_out(index, below, sever=False)
        elif edit.dependents == "bridge":
            self._bridge(node)
        self._take_out(index, node, sever=edit.dependents is None)

    def _take_out(self, index: int, node: Node, sever: bool) -> None:
        for child in _in_order(node.children.values()):
            dependency = child.parents[node.id]
            self._modifiable(child.id)
            self._unlink(dependency)
            if sever:
                self.severed.setdefault(child.id, {})[node.id] = (index, dependency)
        for dependency in list(node.parents.values()):
            self._unlink(dependency)
        self.severed.pop(node.id, None)
        self._delete(node)

    def _bridge(self, node: Node) -> None:
        for child in _in_order(node.children.values()):
            for dependency in node.parents.values():
                if dependency.source not in child.parents:
                    self._link(replace(dependency, target=child.id))

    def update_task(self, index: int, edit: UpdateTask) -> None:
        node = self._modifiable(edit.task_id)
        task = node.task.changed(edit.changes)
        if task != node.task:
            self._replace(node, self._checked_work(task))

    def add_dependency(self, index: int, edit: AddDependency) -> None:
        dependency = self._checked(edit)
        self.graph.node(edit.source)
        target, key = self._modifiable(edit.target), (edit.source, edit.target)
        if key in self.relinked:  # the batch states this edge explicitly: its terms count
            self._unlink(target.parents[edit.source])
        elif edit.source in target.parents:
            raise _Refused("duplicate_dependency", f"{edit.target!r} already depends on {edit.source!r}")
        self._link(dependency)
        self.rewired.add(key)

    def update_dependency(self, index: int, edit: UpdateDependency) -> None:
        dependency = self._checked(edit)
        self._unlink(self._existing(edit.source, edit.target))
        self._link(dependency)

    def remove_dependency(self, index: int, edit: RemoveDependency) -> None:
        if self.severed.get(edit.target, {}).pop(edit.source, None) is None:
            self._unlink(self._existing(edit.source, edit.target))

    def cancel_task(self, index: int, edit: CancelTask) -> None:
        node = self.graph.node(edit.task_id)
        if node.status not in TRANSITIONS["cancel"]:
            raise _Refused("immutable", f"task {edit.task_id!r} is already {node.status}: it cannot be cancelled")
        self.cancelled.append((node, edit.reason))
        self.touched.add(node.id)
        self.irreversible = True

    def remove_taint(self, index: int, edit: RemoveTaint) -> None:
        tainted = self.graph.tainted
        if not tainted:
            raise _Refused("untrusted", "no untrusted task has started: there is no taint to remove")
        busy = [name for name in sorted(tainted) if _has_not_ended(self.graph.nodes.get(name))]
        if busy:
            names = ", ".join(map(repr, busy[:3])) + (f" and {len(busy) - 3:,} more" if len(busy) > 3 else "")
            raise _Refused("untrusted", f"wait for the end of {names}, or cancel it: its result is not known yet")
        self.graph.tainted = set()
        self.undo.append(lambda: setattr(self.graph, "tainted", tainted))
        self.irreversible = True

    def _checked(self, edit: AddDependency | UpdateDependency) -> Dependency:
        dependency = edit.dependency
        problem = None if edit.when is None else self.graph.check_condition(edit.when)
        if problem is not None:
            raise _Refused("condition", f"the condition {edit.when!r} is not valid: {problem}")
        return dependency

    def _checked_work(self, task: Task) -> Task:
        problem = None if task.plugin is None else self.graph.check_plugin(task.plugin)
        if problem is not None:
            raise _Refused("plugin", f"task {task.id!r}: {problem}")
        return task

    def _existing(self, source: str, target: str) -> Dependency:
        self.graph.node(source)
        dependency = self._modifiable(target).parents.get(source)
        if dependency is None:
            raise _Refused("unknown_dependency", f"{target!r} does not depend on {source!r}")
        return dependency

    # -- conclusion ----------------------------------------------------------------------------------------------------

    def check_severed(self) -> None:
        """Require that the batch rewires or removes every dependent of a removed task: a dropped edge would start its
        target too early."""
        nodes = self.graph.nodes
        rewired = {target for source, target in self.rewired if target in nodes and source in nodes[target].parents}
        loose = [(s, t, index) for t, sources in self.severed.items() for s, (index, _) in sources.items()]
        for source, target, index in sorted(loose, key=lambda edge: edge[2]):
            if target not in rewired:
                self.violate(
                    index,
                    "dependents",
                    f"task {target!r} depends on {source!r}, which is removed; rewire or remove {target!r} in the same "
                    "batch, or set dependents='remove' or dependents='bridge'",
                )

    def check_files(self, batch: EditBatch) -> None:
        """Require that every task whose files are taken has them. A task that is added or changed depends on those
        whose files it takes, whether the batch says so or not."""
        renamed = (self.graph.nodes[task_id] for task_id in self.outputs_changed if task_id in self.graph.nodes)
        concerned = {**self.changed, **{child.id: child for node in renamed for child in node.children.values()}}
        for node in _in_order(node for node in concerned.values() if node.task.inputs):
            for name, reference in files_of_inputs(node.task.inputs).items():
                source = self.graph.nodes.get(reference.task)
                problem = source_problem(name, reference, None if source is None else outputs_of(source.task))
                if problem is None and reference.task not in node.parents:
                    problem = self._depend_on_files(node, name, reference.task)
                if problem is not None:
                    index = _index_of(batch, node)
                    self.violate(index, "files", f"task {node.id!r}: {problem}")

    def _depend_on_files(self, node: Node, name: str, source: str) -> str | None:
        """Let a task depend on one whose files it takes. Returns the problem, if that is not possible."""
        if node.id not in self.rewritten:
            return f"the input {name!r} takes files of {source!r}, so it must depend on it"
        try:
            self._link(Dependency(source, node.id))
        except (CycleFound, InvalidTask) as error:
            return str(error)
        return None

    def check_teardowns(self, batch: EditBatch) -> None:
        """Require that set-ups and teardowns are what they must be, and that no task has to run below a set-up whose
        teardown has started: it would miss what was set up."""
        graph = self.graph
        graph.rescope()
        if not graph.setups:
            return

        concerned = {node for node in self.changed.values() if node.setup is not None or node.teardowns}
        concerned |= {node.setup for node in concerned if node.setup is not None}
        for node in _in_order(concerned):
            index = _index_of(batch, node)
            for problem in teardowns.pair_problems(node):
                self.violate(index, "teardown", problem)
        for setup in graph.setups:
            if not setup.below or not teardowns.is_torn_down(setup):
                continue
            gone = ", ".join(repr(node.id) for node in teardowns.teardowns_of(setup) if node.started_at is not None)
            for node in teardowns.between(graph, setup):
                index = _index_of(batch, node)
                self.violate(
                    index,
                    "torn_down",
                    f"task {node.id!r} would run below {setup.id!r}, which {gone} has torn down; make it independent "
                    f"of {setup.id!r}, or add another set-up for it, or retry the plan from {setup.id!r} when it has "
                    "ended",
                )

    def roll_back(self) -> None:
        for undo in reversed(self.undo):
            undo()
        self.graph.rescope()
        self.graph.rejoined.clear()  # everything is as before

    def conclude(self, batch: EditBatch, now: float) -> Applied:
        graph = self.graph
        graph.version += 1
        for key in self.touched:
            graph.touched[key] = graph.version
        author, edits = batch.author or NO_AUTHOR, batch.description
        why = f"version {graph.version} by {author}" + (f": {batch.reason}" if batch.reason else "")
        facts = {"version": graph.version, "author": author, "reason": batch.reason, "edits": edits}
        graph.add_entry(now, "edited", None, f"{why} ({edits})", facts)
        revoked = [node for node in dict.fromkeys(self.to_revoke) if node.provisional]
        stopped = graph.revoke(revoked, now, why)
        cancelled = []
        for node, reason in self.cancelled:
            # the same batch may already have removed or cancelled it
            if graph.nodes.get(node.id) is node and node.status in TRANSITIONS["cancel"]:
                revoked += [below for below in provisional_below(node) if below.provisional and below is not node]
                stopped += graph.cancel(node, now, reason or why)
                cancelled.append(node)
        for node in self.removed:
            graph.counts[PENDING] -= 1
            node.entry = None
            graph.add_entry(now, "removed", node.id, why)
        graph.tainted.update(self.marked)
        if batch.editor is not None:
            graph.edited.update(dict.fromkeys(self.rewritten, batch.editor))
        for node in self.renewed:
            if node.awaited_since is not None or node.decision is not None:
                node.awaited_since = node.decision = node.entry = None
        for node in self.changed.values():
            if node in self.moved:
                node.entry = None
            graph.requeue(node)
            graph.add_entry(now, "added" if node.id in self.added else "edited", node.id, why)
        if graph.rejoined:
            joins.requeue(graph)
        base = graph.version
        inverse = EditBatch(tuple(reversed(self.inverse)), batch.author, f"undo version {base}", base, batch.triggers)
        undo = None if self.irreversible else inverse
        return Applied(base, batch, undo, tuple(stopped), tuple(revoked), tuple(cancelled), tuple(self.inverse))


class _Refused(Exception):
    """An edit that breaks a rule."""

    def __init__(self, rule: str, message: str) -> None:
        self.rule = rule
        super().__init__(message)


_HANDLERS: dict[type, Callable[..., None]] = {
    AddTask: Attempt.add_task,
    RemoveTask: Attempt.remove_task,
    UpdateTask: Attempt.update_task,
    AddDependency: Attempt.add_dependency,
    UpdateDependency: Attempt.update_dependency,
    RemoveDependency: Attempt.remove_dependency,
    CancelTask: Attempt.cancel_task,
    RemoveTaint: Attempt.remove_taint,
}


def _index_of(batch: EditBatch, node: Node) -> int | None:
    """The first edit of a batch that names a task."""
    return next((number for number, edit in enumerate(batch.edits) if node.id in edit.names()), None)


def _has_not_ended(node: Node | None) -> bool:
    """Whether an untrusted task runs, or may start at any moment."""
    return node is not None and node.task.untrusted and node.status not in TERMINAL


def _in_order(nodes: Iterable[Node]) -> list[Node]:
    """The nodes in an order that depends only on the plan: that of ``children`` depends on rejected edits."""
    return sorted(nodes, key=lambda node: node.number)


def _malformed(edit: Edit) -> str | None:
    """What is wrong with the form of an edit, so that a malformed edit is a violation and not a crash."""
    if type(edit) not in _HANDLERS:
        return f"{safe_repr(edit)} is not an edit"
    if isinstance(edit, AddTask):
        return None if isinstance(edit.task, Task) else f"add_task takes a Task, not {safe_repr(edit.task)}"
    if isinstance(edit, CancelTask) and not isinstance(edit.reason, str):
        return f"the reason of a cancellation is a string, not {safe_repr(edit.reason)}"
    if isinstance(edit, RemoveTaint) and not (isinstance(edit.reason, str) and edit.reason.strip()):
        return f"remove_taint needs a reason, a text, not {safe_repr(edit.reason)}"
    if isinstance(edit, RemoveTask) and edit.dependents not in (None, "remove", "bridge"):
        return f"dependents is 'remove' or 'bridge', not {safe_repr(edit.dependents)}"
    for key in edit.names():
        if not all(isinstance(name, str) for name in (key if isinstance(key, tuple) else (key,))):
            return f"a task id is a string, not {safe_repr(key)}"
    return None


def _stale_message(graph: Graph, base_version: int | None, key: Key) -> str:
    what = f"task {key!r}" if isinstance(key, str) else f"the dependency {key[0]!r} -> {key[1]!r}"
    return (
        f"{what} was changed in version {graph.touched[key]}, after version {base_version}, on which this edit is "
        "based; read the plan again"
    )


# -- undo --------------------------------------------------------------------------------------------------------------


UNDO_LIMIT = 100
"""How many batches are remembered."""


class UndoStack:
    """The accepted batches that can still be undone, newest last. The batch that expands a group (``Task.foreach``) is
    not among them: nobody asked for it, and the group would be expanded again at once.

    Replay of the journal fills it, so every process that reads the plan knows it. It is not part of a snapshot: batches
    before the last compaction of the journal cannot be undone."""

    def __init__(self) -> None:
        self._inverses: dict[int, EditBatch | None] = {}  # by version; None for a batch that cannot be undone

    def record(self, applied: Applied) -> None:
        """An accepted batch is remembered; the undo of one forgets that one."""
        if not applied.batch.edits or _expands_a_group(applied.batch):
            return
        undone = applied.batch.undoes
        if undone is not None and undone in self._inverses:
            newest = next(reversed(self._inverses)) == undone
            del self._inverses[undone]
            if newest:
                self._rebase(applied.version)
            return
        self._inverses[applied.version] = applied.inverse
        if len(self._inverses) > UNDO_LIMIT:
            del self._inverses[next(iter(self._inverses))]

    def _rebase(self, version: int) -> None:
        """The newest batch was undone, so the plan is as it was after the one before: nothing has changed since for the
        undo of that one, and it is not stale."""
        before = next(reversed(self._inverses), None)
        if before is not None and (inverse := self._inverses[before]) is not None:
            self._inverses[before] = replace(inverse, base_version=version)

    def batch(self, author: str, reason: str = "") -> EditBatch:
        """The batch that undoes the newest one. Raises EditRejected if there is none, or if it cannot be undone."""
        if not self._inverses:
            raise EditRejected([Violation(None, "no_undo", "there is no edit that can be undone")])
        version, inverse = next(reversed(self._inverses.items()))
        if inverse is None:
            message = f"version {version} cannot be undone: it cancelled a task or removed the taint"
            raise EditRejected([Violation(None, "no_undo", message)])
        why = f"undo version {version}" + (f": {reason}" if reason else "")
        return replace(inverse, author=author, reason=why, undoes=version)


def _expands_a_group(batch: EditBatch) -> bool:
    last = batch.edits[-1]
    return isinstance(last, UpdateTask) and "of" in (last.changes.get("foreach") or ())
