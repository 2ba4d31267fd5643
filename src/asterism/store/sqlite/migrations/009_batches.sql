-- The name of the runs to which a run belongs. Written once; null for most runs. The index has all that is counted.

ALTER TABLE runs ADD COLUMN batch TEXT;
CREATE INDEX runs_batch ON runs (batch, id, status, ended_at, created_at) WHERE batch IS NOT NULL;
