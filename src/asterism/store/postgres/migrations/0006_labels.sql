-- What people call a run. Written once; null for a run that nobody gave a label.

ALTER TABLE runs ADD COLUMN label text;
ALTER TYPE new_run ADD ATTRIBUTE label text;

CREATE OR REPLACE FUNCTION add_runs(given new_run[]) RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    ids text[];
BEGIN
    WITH done AS (
        INSERT INTO runs (
            id, workflow, version, created_at, series, key, priority, pinned, timeout, input,
            revision, status, epoch, device, session, wish, avoid, offered,
            due_at, not_before, waiting_since, ended_at, state, label
        )
        SELECT * FROM unnest(given)
        ON CONFLICT DO NOTHING
        RETURNING id
    )
    SELECT array_agg(id) INTO ids FROM done;
    RETURN coalesce(ids, '{}');
END
$$;
