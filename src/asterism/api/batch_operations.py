"""Operations on batches: list, show, wait, cancel, retry and read results.

A batch is no more than a name that runs have: it exists while one of its runs does. A run that was retried is replaced
by its retry, in counts, lists and results.
"""

from __future__ import annotations

from typing import Annotated

from asterism.api import documents
from asterism.api.documents import Doc
from asterism.api.operation import Limit, Name, Operation, Reason
from asterism.api.quick_dataclass import Request
from asterism.api.run_operations import MOST_AT_ONCE, After

BatchName = Annotated[Name, Doc("The name of the batch.")]


class ListBatches(Request):
    """All batches."""


class OneBatch(Request):
    batch: BatchName


class WaitBatch(Request):
    batch: BatchName
    timeout: Annotated[float, Limit(ge=0, le=60), Doc("How long the answer may wait for the end, in seconds.")] = 20.0


class CancelBatch(Request):
    batch: BatchName
    after: After = None
    reason: Reason = ""


class RetryBatch(Request):
    batch: BatchName
    failed: Annotated[bool, Doc("Leave runs alone that were cancelled.")] = False
    after: After = None
    reason: Reason = ""


class ReadBatchResults(Request):
    batch: BatchName
    after: After = None
    limit: Annotated[int, Limit(ge=1, le=MOST_AT_ONCE)] = 100


BatchPage = documents.Page[documents.Batch]
ResultPage = documents.Page[documents.BatchResult]


class BatchOperations:
    list_batches = Operation(ListBatches, BatchPage, "List the batches, the newest first.", "GET /batches")
    show_batch = Operation(
        OneBatch,
        documents.BatchDetails,
        "How far a batch has come: counts, rate, time left, and what failed.",
        "GET /batches/{batch}",
    )
    wait_batch = Operation(
        WaitBatch,
        documents.BatchDetails,
        "A batch when all its runs have ended, or as it is after a while.",
        "GET /batches/{batch}/wait",
    )
    cancel_batch = Operation(
        CancelBatch,
        documents.BulkOutcome,
        f"Cancel the runs of a batch, {MOST_AT_ONCE} at a time.",
        "POST /batches/{batch}/cancel",
    )
    retry_batch = Operation(
        RetryBatch,
        documents.BulkOutcome,
        f"Retry the runs of a batch that failed or were cancelled, {MOST_AT_ONCE} at a time.",
        "POST /batches/{batch}/retry",
    )
    read_batch_results = Operation(
        ReadBatchResults,
        ResultPage,
        "The results of the runs of a batch that have ended, in the order of their creation.",
        "GET /batches/{batch}/results",
    )
