"""The documents of the API: what operations answer, as every door shows it.

A client ignores fields that it does not know, so that a newer server may add some. Times are seconds since 1970 by the
clock of the store, durations are seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Generic, TypeVar, dataclass_transform

from asterism.core.errors import Violation as Violation
from asterism.core.history import Reason as Reason
from asterism.core.json_values import JsonObject
from asterism.core.plan.editor_cost import EditorCost as EditorCost
from asterism.core.record import KeywordOnly, Meta, Record, field, repr_without

Item = TypeVar("Item")
AnyDocument = TypeVar("AnyDocument", bound="Document")


def Doc(text: str, *examples: str) -> Meta:  # it stands where a class would
    """What a field means, for the schema: ``Annotated[int, Doc("How many edits wait for a person.")]``."""
    return Meta(description=text or None, examples=list(examples) or None)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Document(Record, metaclass=KeywordOnly):
    """A part of an answer: a record whose fields are named. Its docstring describes it in the schema."""


def document_of(kind: type[AnyDocument], *sources: object, **fields: Any) -> AnyDocument:
    """A document whose fields are the attributes of these objects with the same names, where ``fields`` does not give
    them; of two objects that have one, the first counts. Tuples of records are lists in documents."""
    for name in kind.__struct_fields__:
        if name not in fields:
            source = next((source for source in sources if hasattr(source, name)), None)
            if source is not None:
                value = getattr(source, name)
                fields[name] = list(value) if type(value) is tuple else value
    return kind(**fields)


class Page(Document, Generic[Item]):
    """A part of a list. ``next`` is the value of ``after`` for the part that follows; null at the end. A part may
    have fewer items than asked for, even none, and not be the last. ``now`` is the clock of the store."""

    items: list[Item]
    next: str | None = None
    now: float | None = None


class Problem(Document):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    violations: list[Violation] | None = None
    approval: Annotated[int | None, Doc("The number of an edit that waits for a person.")] = None


class Health(Document):
    """``problem`` says what is wrong; it is absent if everything is well."""

    status: Annotated[str, Doc("", "ok", "unavailable")]
    version: str
    problem: str | None = None


class Me(Document):
    """``logout`` is where a person who was logged in by a proxy logs out; null for others."""

    name: str
    scopes: list[str]
    kind: str
    expires_at: float
    logout: str | None = None


class Permissions(Document):
    """The names of the operations that a caller may do."""

    operations: list[str]


class NewToken(Me):
    """``token`` is shown once."""

    token: str


# -- editors -----------------------------------------------------------------------------------------------------------


class Cycle(Document):
    """An open edit cycle: ``tasks`` are those whose ends it reviews."""

    id: int
    version: int
    opened_at: float
    expires_at: float | None
    claimed_by: str | None
    stuck: bool
    rejections: int
    tasks: list[str]


class CycleEnd(Document):
    """The end of a task under review."""

    task: str
    status: str | None
    reason: str


class Refusal(Document):
    """An answer of an editor that a person refused since the cycle before it."""

    approval: int
    by: str
    reason: str
    edits: str


class CycleDetails(Cycle):
    """An open edit cycle, with the ends under review. ``version`` is the base of its answer."""

    claimed_until: float | None
    ends: list[CycleEnd]
    refusals: list[Refusal] = field(default_factory=list)
    on_hold: Annotated[str, Doc("Why its editor waits for a person.")] = ""


class Cycles(Page[CycleDetails]):
    """``answered_by`` is the process that runs the plan; null if the journal says what is open, without claims."""

    items: list[CycleDetails]
    answered_by: str | None


class EditorBudget(Document):
    """What the model that edits a plan may spend, and has spent: ``dollars``, ``tokens``, ``calls``, ``seconds`` and
    ``tasks``. ``held_since`` is when a spent budget began to hold the plan, and ``held_why`` what was spent; at
    ``held_until`` the plan goes on without its editor. ``without_editor``: it does so already. ``unpriced`` names the
    models whose price is unknown: their dollars are not counted. ``calls_under_way`` may cost ``reserved_text``."""

    budget: dict[str, float]
    budget_text: str
    spent: dict[str, float]
    spent_text: str
    calls_under_way: int = 0
    reserved_text: str = ""
    higher_limits: Annotated[str, Doc("Limits with which the editor could go on, such as `80calls`.")] = ""
    without_editor: bool = False
    decided_by: str = ""
    held_since: float | None = None
    held_until: float | None = None
    held_why: str = ""
    unpriced: str = ""


class ClosedCycle(Document):
    """An edit cycle that is closed: ``tasks`` are those whose ends it reviewed. ``version`` is the version that its
    answer made, null if it made none. ``cost`` is null if its editor tells nothing."""

    id: int
    opened_at: float
    closed_at: float
    tasks: list[str]
    stuck: bool
    rejections: int
    outcome: str
    version: int | None
    cost: EditorCost | None


class WaitingEdit(Document):
    """An edit that waits for a person, or waited. ``reasons`` say which rules it matches; it holds ``tasks``.
    ``state`` is ``waiting``, ``approved``, ``refused`` or ``expired``.

    While it waits, ``cost`` is what the tasks cost that it adds or changes, and ``effects`` what the tasks do that it
    concerns. At ``escalates_at`` people are told again: by a notice, and by the ``command`` or the ``url`` for
    notifications of the fleet (``escalates_to``)."""

    id: int
    batch: JsonObject
    changes: Annotated[list[str], Doc("The edits as lines, with every field of a task that they add, change or start.")]
    at: float
    expires_at: float
    reasons: list[str]
    tasks: list[str]
    cycle: int | None
    state: str
    decided_by: str
    decided_at: float | None
    why: str
    version: int | None
    escalated_at: float | None = None
    task: Annotated[str | None, Doc("The task that needs approval for its start; the batch is then empty.")] = None
    by: Annotated[list[str], Doc("Who may decide about that; empty for everybody.")] = field(default_factory=list)
    cost: float = 0.0
    effects: dict[str, list[str]] = field(default_factory=dict)
    escalates_at: float | None = None
    escalates_to: list[str] = field(default_factory=list)


# -- plans -------------------------------------------------------------------------------------------------------------


class PlanHead(Document):
    """What is known of a plan without its tasks."""

    name: str
    state: Annotated[str, Doc("Its state; `at_rest` if it has begun, has not ended, and no process runs it.")]
    state_text: Annotated[str, Doc("The state in words, such as `at rest` or `cancelling`.")]
    repaired: bool = False
    file: Annotated[str | None, Doc("The name of the plan file that it was started from.")] = None
    tags: Annotated[list[str], Doc("The tags of the plan file.")] = field(default_factory=list)
    started_at: float | None = None
    ended_at: float | None = None
    done: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    owner: str | None = None
    heard_at: Annotated[float | None, Doc("The last heartbeat of its owner.")] = None
    last_owner: Annotated[str | None, Doc("Who ran it last, if no process does.")] = None
    last_heard_at: float | None = None
    paused: str | None = None
    cancelling: bool = False
    waits_for_person: Annotated[str, Doc("What a person has to decide, such as `1 approval waits`.")] = ""
    stalled: Annotated[
        str,
        Doc("Why nothing moves while a process runs the plan, such as `3 queued`; empty if a task is executed."),
    ] = ""
    waiting_edits: Annotated[int, Doc("How many edits, and starts of tasks, wait for a person.")] = 0
    budget_spent: Annotated[bool, Doc("Whether the budget of its editor is spent, and holds the plan.")] = False


class PlanSummary(PlanHead):
    """A plan in a list. A plan that cannot be read has the state ``unreadable`` and an ``error``."""

    version: int | None = None
    created_at: float | None = None
    changed_at: Annotated[float | None, Doc("The last entry of its story.")] = None
    tasks: int = 0
    epoch: int | None = None
    error: str | None = None


class PlanParameter(Document):
    """A parameter that a plan file declares."""

    name: str
    type: str
    description: str
    choices: list[Any] | None
    default: Any
    required: bool


class PlanFinding(Document):
    """A mistake in a plan file, or with ``warning`` what may be one. ``file`` is that of an included file."""

    line: int
    text: str
    warning: bool
    file: str


class CheckedPlan(Document):
    """What a plan file would make. ``valid`` is whether it can be submitted once its parameters have values, ``name``
    the one that a plan would get now."""

    valid: bool
    name: str | None
    tasks: int
    dependencies: int
    params: list[PlanParameter]
    findings: list[PlanFinding]


class AttemptTimes(Document):
    """When an attempt was created, assigned to a device, begun and ended, as far as it has come."""

    created_at: float
    assigned_at: float | None
    begun_at: float | None
    ended_at: float | None


class PlanTask(Document):
    """A task of a plan. ``phase`` says what a running one does: it is ``queued`` until a device has it, ``starting``
    until it has begun there, then ``running``; null for others and in views of the past. ``attempt`` has the times of
    its last attempt in the fleet; it worked from ``begun_at`` to ``ended_at``. ``held_by`` are the tasks under review
    that hold it; ``group`` is the group that it is an element of; ``needless`` is whether it was cancelled because a
    condition made it unnecessary."""

    id: str
    name: str
    status: str
    reason: str | None
    device: str | None
    phase: str | None = None
    attempts: int
    attempt: AttemptTimes | None = None
    waits_for: Annotated[str | None, Doc("The event, time or other plan that it waits for now, in words.")] = None
    awaited_since: Annotated[float | None, Doc("When it began to wait for that; also of a task that has ended.")] = None
    started_at: float | None
    ended_at: float | None
    provisional: bool
    held_by: list[str]
    needless: bool
    group: str | None
    estimate: float | None
    result: Annotated[Any, Doc("What it returned; in a list of tasks only if results are asked for.")] = None
    behind: Annotated[dict[str, int], Doc("How many tasks a folded group stands for, by status.")] = field(
        default_factory=dict
    )


class PlanDependency(Document):
    source: str
    target: str
    on: str
    when: str | None


class Plan(PlanHead):
    """A plan as it is now. ``position`` is its place in the journal: the events after it continue this view. ``owner``
    is the process that runs it, ``last_owner`` the one that ran it last if none does. ``orphaned`` are the tasks that
    count as running though no process runs the plan and no device executes them. ``tick`` has the values of its tick,
    by the paths of their placeholders. ``ahead`` is the plan for which it waits before any process runs it: of the
    same file or schedule."""

    version: int
    position: str
    now: float
    epoch: int
    cancel_request: str | None
    created_at: float
    changed_at: float
    ended: bool
    params: JsonObject
    tick: dict[str, str]
    tasks: list[PlanTask]
    dependencies: list[PlanDependency]
    orphaned: list[str]
    cycles: list[Cycle]
    approvals: list[WaitingEdit] = field(default_factory=list)
    budget: EditorBudget | None = None
    ahead: str | None = None


class ExecutedTask(Document):
    """Which device executes a task, and since when."""

    device: str
    begun_at: float


class PlanCopy(Document):
    """A plan in the form in which Asterism writes plans, with secrets masked: ``plan`` has its tasks and its story,
    ``lock`` its open edit cycles, ``closed_cycles`` the others. ``executing`` are the tasks that
    devices execute; ``queued`` is how many wait for one. ``position`` as for ``Plan``."""

    position: str
    now: float
    paused: str | None
    policy: str
    plan: JsonObject
    lock: JsonObject
    closed_cycles: list[JsonObject]
    executing: dict[str, ExecutedTask]
    queued: int


class PlanEvent(Document):
    """Something that happened to a plan; docs/reference/http-api.md lists the kinds. ``fields`` has everything
    about it."""

    position: str
    at: float
    kind: str
    fields: JsonObject = field(default_factory=dict)


class FleetEvent(Document):
    """A change of a run or a device, or a new notice; docs/reference/http-api.md lists the kinds. ``position`` is what
    ``follow_fleet`` continues after; ``fields`` has everything about the event."""

    position: str
    kind: str
    fields: JsonObject = field(default_factory=dict)


class Changes(Page[JsonObject]):
    """The events after a position. With ``reset`` there are none: read the plan again, and continue after
    ``position``."""

    items: list[JsonObject]
    position: str
    reset: bool


class PlanVersion(Document):
    """A version of a plan, and the edit that made it; version 0 is the plan as it was stored."""

    version: int
    at: float
    position: str
    author: str
    reason: str
    edits: list[JsonObject]
    diff: JsonObject | None
    triggers: list[str]
    undoes: int | None


class RejectedEdit(Document):
    """``edits`` is null if the batch was too long to be kept."""

    number: int
    at: float
    version: int
    author: str
    reason: str
    triggers: list[str]
    edits: list[JsonObject] | None
    violations: list[Violation]


class Versions(Page[PlanVersion]):
    """``cycles`` are the edit cycles that are closed; ``cost`` is what their editors have cost together."""

    items: list[PlanVersion]
    rejected: list[RejectedEdit]
    cycles: list[ClosedCycle] = field(default_factory=list)
    cost: EditorCost | None = None


class PlanContent(Document):
    """The tasks of a plan, such as that of a plan file."""

    name: str
    version: int
    state: str
    counts: dict[str, int]
    tasks: list[PlanTask]
    dependencies: list[PlanDependency]


class PastPlan(PlanContent):
    """A plan as it was right after the edit that made a version."""

    edit: PlanVersion


class TextStyle(Document):
    """How a part of a text looks: colours and weights as `rich` names them, such as ``bold red``."""

    start: int
    end: int
    style: str


class Drawing(Document):
    """A plan as a drawing. ``styles`` are those of a ``text``."""

    name: str
    form: str
    text: str
    styles: list[TextStyle] = field(default_factory=list)


class StoryEntry(Document):
    at: float
    what: str
    why: str
    task: str | None = None
    traceback: str | None = None
    """That of the function that failed."""


class Attempt(Document):
    """One execution of a task: a run of the fleet, or by the process of its plan; then ``run`` is null."""

    run: str | None
    status: str
    device: str | None
    created_at: float
    assigned_at: float | None = None
    started_at: float | None
    ended_at: float | None
    error: str | None


class Task(PlanTask):
    """A task with everything that is known of it. ``definition`` is the task as an edit has it."""

    definition: JsonObject
    executions: list[Attempt]
    story: list[StoryEntry]


class TaskWhy(Document):
    """Why a task does not run. ``answered_by`` is the process that runs the plan, if it gave the answer. ``advice`` are
    sentences with a command that helps."""

    name: str
    task: str
    status: str
    run: str | None
    reasons: list[Reason]
    advice: list[str]
    answered_by: str | None = None


class PlanCause(Document):
    """``tasks`` do not run, for these reasons, and ``behind`` them wait so many others."""

    tasks: list[str]
    text: Annotated[str, Doc("The reasons in a sentence.")]
    reasons: list[Reason]
    behind: int
    advice: list[str]


class PlanWhy(Document):
    """What holds a plan. ``running`` are the tasks that a device executes: without any, nothing moves. ``left`` tasks
    wait for more causes than are listed."""

    name: str
    state: str
    running: list[str]
    causes: list[PlanCause]
    left: int


class LogEntry(Document):
    attempt: int
    at: float
    stream: str
    text: str


class TaskLogEntry(LogEntry):
    """A line that a task printed. ``run`` is the run of the fleet that executed it, or the id of an execution by the
    process of the plan."""

    run: str
    task: str


class PlanLog(Page[TaskLogEntry]):
    """A part of what the tasks of a plan printed, in the order of time within this part. With ``more``, other lines are
    there already. After an answer without lines whose ``ended`` is true there is no more. ``executed`` is whether the
    store has executions of them."""

    items: list[TaskLogEntry]
    more: bool
    ended: bool
    executed: bool


class PlanFile(Document):
    """A file that a task has made: ``path`` is where it lies in the working folder, ``mode`` its permissions."""

    task: str
    output: str
    path: str
    size: int
    sha256: str
    mode: int


class FilePart(Document):
    """Bytes of a file from ``offset`` on. ``size`` and ``sha256`` are those of the whole file."""

    offset: int
    size: int
    sha256: str
    data: Annotated[str, Doc("In Base64.")]


class EditOutcome(Document):
    """An edit that was accepted. With ``dry_run`` nothing has changed. ``inverse`` undoes it."""

    name: str
    accepted: bool
    dry_run: bool
    version_before: int
    version: int
    edits: list[JsonObject]
    changes: Annotated[list[str], Doc("The edits as sentences.")]
    stopped: Annotated[list[str], Doc("Running tasks that it stops.")]
    inverse: JsonObject | None
    applied_by: str | None
    reopened: Annotated[
        bool, Doc("Whether the plan had ended: the edit opened it again; in a dry run: would open it again.")
    ] = False
    rests: Annotated[str | None, Doc("If no process runs the plan, and none will: how to resume it.")] = None
    waits: Annotated[list[str], Doc("In a dry run: why the edit would wait for a person.")] = field(
        default_factory=list
    )


class EditProposal(Document):
    """Edits that a model proposes for a request in words. ``outcome`` is what they would do; the plan has not changed.
    Its ``changes`` have a line for every field of a task that they add or change. To apply them, send them with this
    ``base_version`` and this ``editor``."""

    outcome: EditOutcome
    reason: Annotated[str, Doc("What the model says about them; without edits, why there are none.")]
    base_version: Annotated[int, Doc("The version of the plan that the model has read.")]
    editor: Annotated[str, Doc("The model.")]
    cost: EditorCost


class PlanState(Document):
    """What became of a request about a plan. ``applied_by`` is the process that runs it and has obeyed."""

    name: str
    state: str
    paused: str | None = None
    owner: str | None = None
    applied_by: str | None = None
    already: Annotated[bool, Doc("Whether it was paused before.")] = False
    tasks: Annotated[list[str] | None, Doc("The tasks that run again after a retry.")] = None
    version: int | None = None


class RemovedPlan(Document):
    """A plan that was removed, and how many runs with it."""

    name: str
    runs: int


class Cancellation(Document):
    """What has become of a request to cancel a plan. ``cancelled`` says who asked and why. ``teardowns`` are the tasks
    that still clean up; no device can execute those in ``waiting_teardowns``, which has the reasons. Those in
    ``failed_teardowns`` do not run again."""

    name: str
    state: str
    ended: bool
    owner: str | None
    cancelled: str | None
    teardowns: list[str]
    waiting_teardowns: dict[str, str]
    failed_teardowns: dict[str, str]


# -- fleet -------------------------------------------------------------------------------------------------------------


class Step(Document):
    """How far a run has come."""

    step: int
    total: int | None


class PreviousAssignment(Document):
    """An ended assignment of a run; ``score`` is that with which the device got it, null if it is not known."""

    device: str
    epoch: int
    assigned_at: float
    ended_at: float
    reason: str
    detail: str
    score: float | None


class SupersededResult(Document):
    """A result that lost when two stores met: the run was completed in both."""

    device: str
    epoch: int
    ended_at: float
    output: Any


class Run(Document):
    """A run of the fleet. ``status`` is one word for people: a run with a pause is ``paused``. ``shown_label`` is what
    lists call it. ``waiting`` is what an open run waits for: device, limit, claim, turn, retry, person or peer;
    ``held_for`` is the peer that may still execute it. ``took`` is how long its last execution took, ``waited`` how
    long it waited for that. ``wish`` is what its device was asked for, such as to stop."""

    id: str
    workflow: str
    version: int
    status: str
    label: str | None
    shown_label: str
    key: str | None
    series: str | None
    priority: int
    pinned: str | None
    retry_of: str | None
    keep: str
    heartbeat_timeout: float
    created_at: float
    created_by: str
    revision: int
    epoch: int
    device: str | None
    assigned_to: str | None
    session: str | None
    assigned_by: str | None
    assigned_at: float | None
    claimed_at: float | None
    started_at: float | None
    ended_at: float | None
    ended: bool
    due_at: float | None
    waiting_since: float | None
    not_before: float
    last_heartbeat_at: float | None
    assignment_expires_at: float | None
    claim_expires_at: float | None
    completed_at: float | None
    failed_at: float | None
    cancelled_at: float | None
    held: bool
    held_for: str | None
    paused: str | None
    wish: str | None
    wished_by: str | None
    waiting: str | None
    attempts: int
    failures: int
    losses: int
    rounds: int
    avoid: list[str]
    declined: dict[str, str]
    scores: dict[str, float]
    progress: Step | None
    took: float | None
    waited: float | None
    error: str | None
    cancelled: bool
    input: Any
    output: Any
    previous_assignments: list[PreviousAssignment]
    superseded: list[SupersededResult]
    story: list[StoryEntry]
    traceparent: str | None = None
    batch: str | None = None
    uses: Annotated[dict[str, int] | None, Doc("The limits that it holds while it runs.")] = None


class RunDetails(Run):
    """A run with its notices, why it does not run, and the last lines that it printed (``tail``); ``more_output`` is
    whether its log has more. ``now`` is the clock of the store."""

    now: float
    tail: str
    more_output: bool
    notices: list[Notice]
    why: list[Reason]
    advice: list[str]


class RunWhy(Document):
    """Why a run does not run. ``advice`` are sentences, each with a command that helps."""

    run: str
    status: str
    reasons: list[Reason]
    advice: list[str]


class RunLog(Page[LogEntry]):
    """A part of what a run printed. After an answer without lines whose ``ended`` is true there is no more.
    ``elsewhere`` is whether the run is with a peer, and so is what it prints."""

    items: list[LogEntry]
    run: str
    status: str
    ended: bool
    elsewhere: bool


class CreatedRun(Document):
    id: str
    label: str | None
    key: str | None


class CreatedRuns(Document):
    """The runs of a request, in the order of the inputs; in place of a run whose key is taken, the run that has it.
    ``created`` is how many are new."""

    runs: list[CreatedRun]
    created: int


class BulkOutcome(Document):
    """What became of an action on several runs. ``refused`` has a sentence for each run that it was refused for."""

    changed: list[str]
    refused: dict[str, str]
    next: Annotated[str | None, Doc("The value of `after` for the runs that follow; null if all were visited.")]


class EventTaker(Document):
    """Who has taken an event: a task of a plan, or a schedule, which has started the plan."""

    plan: str
    at: float
    task: str
    schedule: str


class SentEvent(Document):
    """An event that plans wait for. ``again`` is whether it had been sent before, under the same key."""

    number: int
    name: str
    at: float
    data: Any
    key: str | None
    by: str
    again: bool
    taken_by: list[EventTaker]


class Batch(Document):
    """Runs with a common name, counted. A run that was retried is not counted: its retry is. ``waiting`` are the runs
    that no device works on yet; ``failed`` does not count ``cancelled``."""

    name: str
    runs: int
    waiting: int
    running: int
    completed: int
    failed: int
    cancelled: int
    ended: bool
    created_at: float
    ended_at: Annotated[float | None, Doc("When a run ended last; null if none has.")]


class FailedRun(Document):
    """A run of a batch that failed, and the last lines that it printed (``tail``)."""

    id: str
    label: str
    device: str | None
    ended_at: float | None
    error: str | None
    tail: str


class BatchDetails(Batch):
    """A batch, how fast it is, and the newest of its runs that failed. ``now`` is the clock of the store."""

    now: float
    rate: Annotated[float | None, Doc("How many runs ended per second, lately; null if none has, or all have.")]
    time_left: Annotated[float | None, Doc("When all have ended at this rate, in seconds from now.")]
    failures: list[FailedRun]


class BatchResult(Document):
    """How a run of a batch ended."""

    id: str
    label: str
    key: str | None
    status: str
    device: str | None
    attempts: int
    took: float | None
    ended_at: float | None
    input: Any
    output: Any
    error: str | None


class Limit(Document):
    """A limit. ``used`` is how much of each name is in use: one name, or those below the name before ``/*``."""

    name: str
    size: Annotated[int | None, Doc("How much may be in use at a time; null for no such limit.")]
    rate: Annotated[int | None, Doc("How much may begin within any period; null for no such limit.")]
    period: Annotated[float | None, Doc("The period of the rate, in seconds.")]
    used: dict[str, int]
    waiting: Annotated[int, Doc("How many runs wait that use it, for this limit or another one.")]


class LimitUser(Document):
    """A run that holds a limit or waits for it, or a task that the process of a plan does itself; ``uses`` has the
    amount for each name. ``since`` is when it was assigned, or began to wait."""

    id: str
    workflow: str
    label: str
    batch: str | None
    device: str | None
    priority: int
    uses: dict[str, int]
    since: float


class LimitDetails(Limit):
    """A limit, the runs that hold it, and those that wait, in the order of their turns: 100 of each at most. ``now`` is
    the clock of the store."""

    holders: list[LimitUser]
    next_runs: list[LimitUser]
    now: float


class PrunedRuns(Document):
    """How many runs were deleted."""

    pruned: int


class RunOutput(Document):
    run: str
    output: Any


class Workflow(Document):
    """What runs execute: exactly one of ``call``, ``argv``, ``shell``, ``http``, ``agent`` and ``plugin``, and its
    terms."""

    name: str
    version: int
    call: str | None
    argv: list[str] | None
    shell: str | None
    http: JsonObject | None
    agent: JsonObject | None
    plugin: JsonObject | None
    env: JsonObject
    outputs: dict[str, str] | None
    cwd: str | None
    description: str
    needs: list[str]
    wants: list[str]
    device: str | None
    requires: str | None
    prefers: str | None
    strategy: str
    orchestration: bool
    priority: int
    preemptible: bool
    keep: str
    heartbeat: float
    heartbeat_timeout: float
    assignment_timeout: float
    claim_timeout: float
    no_device_timeout: float
    timeout: float | None
    retries: int
    losses: int
    rounds: int
    backoff: float
    backoff_most: float
    uses: Annotated[dict[str, int] | None, Doc("The limits that each run holds, with the amounts.")] = None


class AddedWorkflow(Workflow):
    """``added`` is false if the latest version of its name was the same already."""

    added: bool


class Device(Document):
    """A device that has joined. ``state`` is one word for people; ``rank`` is how well it fits in general, null for one
    that is not there. ``profile`` is what the machine reports, with any values."""

    name: str
    state: str
    coordinator: bool
    session: str
    host: str
    peer: str | None
    can: list[str]
    slots: int
    backlog: int
    used: int
    load: float
    quality: float
    rank: float | None
    battery: float | None
    labels: JsonObject
    accepts: str | None
    draining: bool
    resting: str | None
    heartbeat_timeout: float
    joined_at: float
    last_heartbeat_at: float
    profile: JsonObject


class DeviceInvitation(Document):
    """A code with which one device enrols once. ``name`` is its name, or a pattern of names; ``can`` are the
    capabilities that it may declare, null for any; ``seconds`` is how long the code is valid."""

    code: str
    name: str
    can: list[str] | None
    seconds: float


class RevokedDevice(Document):
    """A device whose key is refused from now on."""

    name: str
    enrolled_at: float
    revoked_at: float


class FleetView(Document):
    """A fleet as it is now. ``counts`` are the numbers of runs by status; ``cancelled`` is how many of the failed ones
    were cancelled, null if there are too many to count. ``devices`` are those that can be reached. ``owned`` and
    ``waiting`` runs are in the order of their creation, ``ended`` ones have the latest first."""

    now: float
    counts: dict[str, int]
    cancelled: int | None
    coordinator: str | None
    devices: list[Device]
    owned: list[Run]
    waiting: list[Run]
    ended: list[Run]


class DeviceDetails(Device):
    """A device with the runs that it holds, and those that it had. ``now`` is the clock of the store."""

    holds: list[Run]
    latest: list[Run]
    now: float


class DeviceScore(Document):
    """A device in the selection for a run. ``parts`` is null if it is not a candidate; ``why`` says why, or that it has
    no free slot."""

    device: str
    score: float | None
    parts: dict[str, float] | None
    candidate: bool
    chosen: bool
    why: str | None


class DeviceScores(Document):
    """The devices for a run, or for a new run of a workflow: candidates first, the best at the top. For a run,
    ``assignment`` are the scores at its assignment to ``assigned_to``."""

    workflow: str
    version: int
    strategy: str
    run: str | None
    devices: list[DeviceScore]
    assignment: dict[str, float] | None
    assigned_to: str | None
    epoch: int | None


class Schedule(Document):
    """When runs of a workflow, or plans, are created. ``target`` is what it creates and ``times`` when, in words;
    ``open`` are the runs or plans of it that have not ended. ``due_in`` is how long until the next time, in seconds."""

    name: str
    workflow: str | None
    input: JsonObject
    priority: int | None
    device: str | None
    plan: str | None
    cron: str | None
    every: int | None
    on_event: str | None
    timezone: str
    catch_up: str
    overlap: str
    parallel: int
    jitter: float
    start: int
    created_by: str
    paused: str | None
    after: float
    next: int | None
    due: float | None
    seen: int
    open: list[str]
    replaced: list[str]
    made: int
    after_previous: str | None
    late_after: float | None
    late: list[str]
    due_in: float | None
    target: str
    times: str


class Schedules(Page[Schedule]):
    """``advice`` are sentences, each with a command that helps."""

    items: list[Schedule]
    advice: list[str]


class ChangedSchedule(Schedule):
    """A schedule after a request. ``changed`` is false if it was so already. ``advice`` are sentences, each with a
    command that helps."""

    changed: bool
    advice: list[str] = field(default_factory=list)


class ScheduleDetails(Schedule):
    """A schedule with its next times and its history. ``params`` are the parameters of its plan file, ``text`` is
    that of the file if it was asked for; ``unowned`` is the oldest open plan, if no process runs it; ``awaited`` the
    plan whose success it waits for."""

    next_times: list[float]
    history: list[Tick]
    coordinator: str | None
    params: JsonObject
    text: str | None
    unowned: str | None
    awaited: str | None = None


class Backfill(Document):
    """The plans of past ticks of a schedule. ``first`` and ``last`` are ticks, ``total`` is how many there are. Those
    that succeeded before are ``skipped``, with ``only_missing`` all that ended before; ``failures`` are the last plans
    that failed. ``time_left`` is in seconds, by the pace so far. ``advice`` are sentences, each with a command that
    helps."""

    schedule: str
    first: int
    last: int
    total: int
    every: int | None
    parallel: int
    only_missing: bool
    created_by: str
    started_at: float
    ended_at: float | None
    cancelled: str | None
    open: list[str]
    succeeded: int
    failed: int
    skipped: int
    failures: list[str]
    time_left: float | None
    advice: list[str] = field(default_factory=list)


class Tick(Document):
    """What became of one tick of a schedule."""

    at: float
    tick: int | None
    outcome: str
    what: str | None
    why: str
    number: int


class CalendarTick(Document):
    """What became of one tick of a schedule. ``local`` is its time in the time zone of the schedule, and ``date`` its
    day there. ``work`` is the plan, or the id of the run, that was created for it; ``late`` whether that has not ended
    in time, or did not end in time."""

    tick: int
    local: str
    date: str
    state: Annotated[
        str,
        Doc("", "succeeded", "failed", "cancelled", "running", "waiting", "skipped", "missed", "none", "due"),
    ]
    work: str | None
    started_at: float | None
    ended_at: float | None
    late: bool
    why: str


class ScheduleTicks(Page[CalendarTick]):
    """Ticks of a schedule in their order. ``today`` is the day that its time zone has now."""

    items: list[CalendarTick]
    timezone: str
    today: str


class SeriesState(Document):
    """The state of a series as its register keeps it, with times in ISO 8601. ``leases`` are pairs of a queued issue
    and the length of the lease that it asked for, in seconds; ``forced`` are issues whose titles name another
    series; ``holder`` is whose the active issue is, by a claim with a name."""

    series: str
    active_issue: int | None
    queue: list[int]
    updated_at: str
    version: int
    revision: int
    since: str | None = None
    claim: str | None = None
    by: str | None = None
    holder: str | None = None
    held_since: str | None = None
    lease: float | None = None
    lease_until: str | None = None
    paused: str | None = None
    leases: list[tuple[int, float]] | None = None
    forced: list[int] | None = None


class Series(Document):
    """A series of issues. ``holder`` is whose the active issue is, by a claim with a name. ``why_not_promoted`` says
    why the head of the queue is not active; ``problem`` why the state cannot be read, and ``state`` is null then."""

    name: str
    status: Annotated[str, Doc("", "active", "free", "paused", "unreadable")]
    active: int | str | None = None
    queue: list[int | str] = field(default_factory=list)
    since: float | None = None
    lease_until: float | None = None
    by: str | None = None
    holder: str | None = None
    held_since: float | None = None
    paused: str | None = None
    why_not_promoted: str | None = None
    problem: str | None = None
    state: SeriesState | None = None


class SeriesChange(Document):
    """``state`` is what the change wrote; null if that cannot be read."""

    at: float
    message: str
    token: str
    state: SeriesState | None


class SeriesDetails(Series):
    changes: list[SeriesChange]
    now: float


class SeriesCounts(Document):
    """What happened during a change: tries after the first, tries that another writer won, lost replies, refusals
    because of a rate limit, claims that found another issue active, and issues that became active from the queue."""

    retries: int = 0
    conflicts: int = 0
    unsure: int = 0
    rate_limited: int = 0
    duplicate_prevented: int = 0
    promotion_events: int = 0


class SeriesOutcome(Series):
    """A series after a change. ``before`` is its state before; ``promoted`` is the issue that became active from the
    queue; ``exists`` is false if there is no such series, and so nothing changed."""

    changed: bool
    exists: bool
    promoted: int | str | None
    tries: int
    dry_run: bool
    before: SeriesState
    counts: SeriesCounts
    now: float


class NextIssue(Document):
    """The issue that a holder has now, and its series; both null if there is none to be had. Then ``others`` are the
    series that have issues all the same: others hold them, or the series is paused or unreadable."""

    issue: int | str | None
    series: Series | None
    changed: bool
    others: list[Series]
    now: float


class Notice(Document):
    number: int
    at: float
    kind: str
    message: str
    run: str | None
    device: str | None


class AuditEntry(Document):
    """Who changed what, or was refused it. ``id`` is its place in the log. ``kind`` is how the caller was known: by a
    ``token``, the ``session`` of a browser, a ``proxy`` that logged a person in, or as a ``local`` command on the
    store. ``outcome`` is ``done``, ``refused``, or ``failed``: then it broke off, and may have been done in part."""

    id: str
    at: float
    by: str
    kind: str
    credential: str
    operation: str
    target: str
    detail: str
    reason: str
    address: str
    key: str
    outcome: str


# -- settings, metrics, tokens and the store ---------------------------------------------------------------------------


class Settings(Document):
    """The settings of a fleet. Times are in seconds, sizes in bytes. Passwords in addresses are masked."""

    keep: float
    keep_events: float
    keep_audit: float
    large: int
    most: int
    log_limit: int
    device_bytes: int
    credential_bytes: int
    artifacts: str | None
    hold: float
    lease: float
    peer_timeout: float
    peer_runs: int
    peer_bytes: int
    peer_blobs: int
    notify_command: list[str] | None
    notify_url: str | None
    weights: dict[str, float]


class Metrics(Document):
    """The metrics of a fleet and its plans: ``text`` in the format of OpenMetrics, ``families`` for programs that read
    JSON, each with its name, help and samples."""

    text: str
    families: list[JsonObject]


class Token(Document):
    """A credential of the server. ``name`` is who uses it, ``kind`` token or session, ``state`` active, expired or
    revoked."""

    id: str
    name: str
    scopes: list[str]
    kind: str
    state: str
    created_at: float
    created_by: str
    expires_at: float


class CreatedToken(Token):
    """``token`` is not shown again."""

    token: str

    def __repr__(self) -> str:
        return repr_without(self, "token")


class LoginCode(Document):
    """A code with which one browser logs in, once: ``ADDRESS/login?code=CODE``."""

    code: str
    expires_at: float

    def __repr__(self) -> str:
        return repr_without(self, "code")


class StoreInfo(Document):
    """What a store contains. ``store`` is its address, which a server does not show. ``runs`` and ``devices`` are the
    numbers by status and state. ``clock_ahead`` is how far the clock of the store is ahead of that of the machine that
    answers, in seconds."""

    store: str | None
    clock: float
    clock_ahead: float
    runs: dict[str, int]
    devices: dict[str, int]
    coordinator: str | None
    workflows: int
    series: int
    series_active: int


# -- lists that come in pages ------------------------------------------------------------------------------------------


async def read_pages(
    read: Callable[..., Awaitable[Page[Item]]],
    limit: int,
    most_at_once: int,
    after: str | None = None,
    **conditions: Any,
) -> Page[Item]:
    """At most ``limit`` items of a list, or all if it is 0, read by at most ``most_at_once``, from the position
    ``after`` on. ``next`` of the answer is None if there are no more."""
    items: list[Item] = []
    while True:
        wanted = min(limit - len(items), most_at_once) if limit else most_at_once
        page = await read(after=after, limit=wanted, **conditions)
        items += page.items
        after = page.next
        if after is None or (limit and len(items) >= limit):
            return Page(items=items, next=after, now=page.now)
