"""Documents about editors of plans: edit cycles, what models cost and may spend, and edits that wait for a person."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from asterism.client.document_base import Document, Page


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
    refusals: list[Refusal] = Field([])
    on_hold: str = Field("", description="Why its editor waits for a person.")


class Cycles(Page[CycleDetails]):
    """``answered_by`` is the process that runs the plan; null if the journal says what is open, without claims."""

    answered_by: str | None


class EditorBudget(Document):
    """What the model that edits a plan may spend, and has spent: ``dollars``, ``tokens``, ``calls``, ``seconds`` and
    ``tasks``. ``held_since`` is when a spent budget began to hold the plan, and ``held_why`` what was spent; at
    ``held_until`` the plan goes on without its editor. ``without_editor``: it does so already. ``unpriced`` names the
    models whose price is unknown: their dollars are not counted."""

    budget: dict[str, float]
    spent: dict[str, float]
    without_editor: bool = False
    decided_by: str = ""
    held_since: float | None = None
    held_until: float | None = None
    held_why: str = ""
    unpriced: str = ""


class EditorCost(Document):
    """What a model has cost that edits a plan. ``model`` is the one that answered last; ``dollars`` is null if a price
    is unknown; ``replayed`` calls were answered from a cassette."""

    model: str = ""
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    dollars: float | None = 0.0
    seconds: float = 0.0
    replayed: int = 0


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
    batch: dict[str, Any]
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
    cost: float = 0.0
    effects: dict[str, list[str]] = Field({})
    escalates_at: float | None = None
    escalates_to: list[str] = Field([])
