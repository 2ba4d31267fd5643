"""Language models and agents: what they read of a plan, and what they may do to it.

``model_editor``        a language model that edits plans: ``ModelEditor``
``planner``             a plan file from a request in words: ``draft_plan``
``budget``              what a call may cost at most: prices, estimates (the budget: ``durable/editor_budget.py``)
``plan_prompt``         the compact view of a plan that it reads
``edit_schema``         its tools, and the schema of its answer
``edit_filter``         which ends it is asked about at all: ``EditFilter``
``conversation``        the messages about the ends of one cycle, and what the answers mean
``model_calls``         requests to models: streams, timeouts, rate limits, fallback, prices
``model_messages``      a question and its answer, as plain data
``cassette``            its exchanges, in memory or in a store, and their replay
``fleet_surroundings``  devices and output of tasks of a plan in a store
``untrusted_text``      marks what devices, issues and files say, so that a model can tell it from its instructions

Models are called through pydantic-ai, the extra ``model``, which is imported with the first call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asterism.base.startup import lazy_names

if TYPE_CHECKING:
    from asterism.agents.budget import Account, Budget, Price, Spent
    from asterism.agents.cassette import Cassette, Exchange, MemoryCassette, StoreCassette
    from asterism.agents.edit_filter import EditFilter
    from asterism.agents.model_calls import ModelCaller, ModelFailed
    from asterism.agents.model_editor import ModelEditor
    from asterism.agents.planner import NoPlan, PlanDraft, draft_plan
    from asterism.agents.untrusted_text import UNTRUSTED_NOTICE, mark_untrusted

__all__ = [
    "UNTRUSTED_NOTICE",
    "Account",
    "Budget",
    "Cassette",
    "EditFilter",
    "Exchange",
    "MemoryCassette",
    "ModelCaller",
    "ModelEditor",
    "ModelFailed",
    "NoPlan",
    "PlanDraft",
    "Price",
    "Spent",
    "StoreCassette",
    "draft_plan",
    "mark_untrusted",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "asterism.agents.budget": ["Account", "Budget", "Price", "Spent"],
        "asterism.agents.cassette": ["Cassette", "Exchange", "MemoryCassette", "StoreCassette"],
        "asterism.agents.edit_filter": ["EditFilter"],
        "asterism.agents.model_calls": ["ModelCaller", "ModelFailed"],
        "asterism.agents.model_editor": ["ModelEditor"],
        "asterism.agents.planner": ["NoPlan", "PlanDraft", "draft_plan"],
        "asterism.agents.untrusted_text": ["UNTRUSTED_NOTICE", "mark_untrusted"],
    },
)
