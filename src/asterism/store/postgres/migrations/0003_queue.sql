-- Taking from the queue.

-- The queue is one list for each kind of run and each device that runs are pinned to (and one for each kind that is
-- pinned to nobody). These are the lists that some devices may take from, those of the kinds in `not_kinds` not among
-- them. What nobody here may have is passed over as a whole, however long it is. The kinds are found from the ends of
-- their lists: at the heads are the dead rows of those that were taken.
CREATE FUNCTION lists_of(devices text[], not_kinds text[]) RETURNS TABLE (kind bigint, pin bigint)
LANGUAGE sql STABLE AS $$
    WITH RECURSIVE kinds AS (
        (
            SELECT kind_hash(workflow, version) AS kind, workflow, version FROM runs WHERE offered = 1
            ORDER BY kind_hash(workflow, version) DESC LIMIT 1
        )
        UNION ALL
        SELECT before.*
        FROM kinds, LATERAL (
            SELECT kind_hash(workflow, version), workflow, version FROM runs
            WHERE offered = 1 AND kind_hash(workflow, version) < kinds.kind
            ORDER BY kind_hash(workflow, version) DESC LIMIT 1
        ) AS before
    ), suitable AS (
        SELECT kind FROM kinds WHERE workflow || '@' || version <> ALL (not_kinds)
    )
    SELECT kind, pin_hash(NULL) FROM suitable
    UNION ALL
    SELECT kind, pinned.pin FROM suitable, (SELECT DISTINCT pin_hash(name) AS pin FROM unnest(devices) AS name) AS pinned,
    LATERAL (
        SELECT 1 FROM runs
        WHERE offered = 1 AND kind_hash(workflow, version) = suitable.kind AND pin_hash(runs.pinned) = pinned.pin
        LIMIT 1
    ) AS somewhat
$$;


-- What comes next in some lists together, after a place, the most urgent first. `chunk` of each list are looked at; if
-- a list has more than that, nothing is known of what follows, so the answer ends there, and its last row says so.
CREATE FUNCTION next_offered(
    kinds bigint[], pins bigint[], now double precision, avoiding text, above bigint,
    after_urgency bigint, after_time double precision, after_id text, chunk bigint
) RETURNS TABLE (id text, urgency bigint, created_at double precision, more boolean) LANGUAGE sql STABLE AS $$
    WITH known AS (
        SELECT one.* FROM unnest(kinds, pins) AS list (kind, pin), LATERAL (
            SELECT runs.id, -runs.priority AS urgency, runs.created_at, row_number() OVER () = chunk AS more
            FROM runs
            WHERE offered = 1 AND kind_hash(workflow, version) = list.kind AND pin_hash(pinned) = list.pin
                AND not_before <= now AND strpos(avoid, avoiding) = 0 AND -runs.priority < -above
                AND (-runs.priority, runs.created_at, runs.id) > (after_urgency, after_time, after_id)
            ORDER BY -runs.priority, runs.created_at, runs.id
            LIMIT chunk
        ) AS one
    ), ends AS (
        SELECT known.urgency, known.created_at, known.id FROM known WHERE known.more ORDER BY 1, 2, 3 LIMIT 1
    )
    SELECT known.* FROM known LEFT JOIN ends ON true
    WHERE ends.id IS NULL OR (known.urgency, known.created_at, known.id) <= (ends.urgency, ends.created_at, ends.id)
    ORDER BY 2, 3, 1
$$;


-- The first `wanted` runs that some devices may have, locked. What others are taking at this moment is passed over.
CREATE FUNCTION lock_offered(
    devices text[], not_kinds text[], now double precision, avoiding text, above bigint, wanted bigint
) RETURNS SETOF runs LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    kinds bigint[];
    pins bigint[];
    chunk bigint;
    after_urgency bigint := -9223372036854775807;
    after_time double precision := '-infinity';
    after_id text := '';
    ids text[];
    urgencies bigint[];
    times double precision[];
    goes_on boolean;
    number bigint;
BEGIN
    SELECT array_agg(kind), array_agg(pin) INTO kinds, pins FROM lists_of(devices, not_kinds);
    IF cardinality(kinds) = 1 THEN -- so it is in most fleets, and there is nothing to merge
        RETURN QUERY
        SELECT * FROM runs
        WHERE offered = 1 AND kind_hash(workflow, version) = kinds[1] AND pin_hash(pinned) = pins[1]
            AND not_before <= now AND strpos(avoid, avoiding) = 0 AND -priority < -above
        ORDER BY -priority, created_at, id
        LIMIT wanted
        FOR UPDATE SKIP LOCKED;
        RETURN;
    END IF;

    chunk := wanted / greatest(cardinality(kinds), 1) + 4;
    WHILE wanted > 0 LOOP
        SELECT array_agg(id), array_agg(urgency), array_agg(created_at), bool_or(more)
        INTO ids, urgencies, times, goes_on
        FROM next_offered(kinds, pins, now, avoiding, above, after_urgency, after_time, after_id, chunk);

        RETURN QUERY
        SELECT * FROM runs WHERE id = ANY (ids) AND offered + 0 = 1 -- a search by id, not in the index of the queue
        ORDER BY -priority, created_at, id
        LIMIT wanted
        FOR UPDATE SKIP LOCKED;

        GET DIAGNOSTICS number = ROW_COUNT;
        EXIT WHEN goes_on IS NOT TRUE;
        wanted := wanted - number;
        chunk := chunk * 2;
        number := cardinality(ids);
        after_urgency := urgencies[number];
        after_time := times[number];
        after_id := ids[number];
    END LOOP;
END
$$;
