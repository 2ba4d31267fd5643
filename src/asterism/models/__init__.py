"""Language models that edit and write plans.

``model_editor``        a language model that edits plans: ``ModelEditor``
``paid_answers``        its answers, paid for one question at a time from the account of a plan
``edit_proposals``      edits for a request in words, in several rounds: ``EditProposer``
``planner``             a plan file from a request in words: ``draft_plan``
``budget``              what a call may cost at most: prices, estimates (the budget: ``durable/editor_budget.py``)
``plan_prompt``         the compact view of a plan that it reads
``edit_filter``         which ends it is asked about at all: ``EditFilter``
``conversation``        its tools, the messages about the ends of one cycle, and what the answers mean
``model_calls``         requests to models: streams, timeouts, rate limits, fallback, prices
``model_messages``      a question and its answer, as plain data
``cassette``            its exchanges, in memory or in a store
``judged_actions``      what an agent asks of its device, judged by the device policy
``untrusted_text``      marks what devices, issues and files say, so that a model can tell it from its instructions

The SDK is the extra ``model``, imported with the first use.

Invariants: the core knows no model. A model goes through the same checks as a person: what a plan allows is decided
below this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asterism.base.startup import lazy_names

if TYPE_CHECKING:
    from asterism.durable.editor_budget import Account as Account
    from asterism.durable.editor_budget import Budget as Budget
    from asterism.durable.editor_budget import Spent as Spent
    from asterism.models.budget import Price as Price
    from asterism.models.cassette import Cassette as Cassette
    from asterism.models.cassette import Exchange as Exchange
    from asterism.models.cassette import MemoryCassette as MemoryCassette
    from asterism.models.cassette import StoreCassette as StoreCassette
    from asterism.models.edit_filter import EditFilter as EditFilter
    from asterism.models.model_calls import ModelCaller as ModelCaller
    from asterism.models.model_calls import ModelFailed as ModelFailed
    from asterism.models.model_editor import ModelEditor as ModelEditor
    from asterism.models.planner import NoPlan as NoPlan
    from asterism.models.planner import PlanDraft as PlanDraft
    from asterism.models.planner import draft_plan as draft_plan
    from asterism.models.untrusted_text import UNTRUSTED_NOTICE as UNTRUSTED_NOTICE
    from asterism.models.untrusted_text import mark_untrusted as mark_untrusted

__getattr__, __dir__ = lazy_names(__name__)
