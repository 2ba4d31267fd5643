-- What a run uses of limits, as JSON text. Written once; null for most runs. A run that waits for its limits has 2 in
-- `offered`. The index has all that is counted, of runs that have not ended.

ALTER TABLE runs ADD COLUMN uses TEXT;
CREATE INDEX runs_limited ON runs (uses, workflow, batch, priority, offered, id, session)
    WHERE uses IS NOT NULL AND ended_at IS NULL;

-- What waits for limits, beside what is offered to all: no device looks through it in the queue.
CREATE INDEX runs_waiting_for_limits ON runs (id) WHERE offered = 2;
