-- Runs, sessions, registers and what belongs to them.
--
-- Text that is compared has the collation "C": its order is that of the code points, as in Python. JSON is kept as
-- text: jsonb would be parsed twice and cannot hold \u0000. Times are seconds by the clock of this server.

-- Names may be long, and an index has no room for that. Two kinds with one hash would share one list of the queue, and
-- one of them might be passed over for the other; with 64 bits that does not happen in the life of a fleet.
CREATE FUNCTION kind_hash(workflow text, digest text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT hashtextextended(workflow, hashtextextended(digest, 0)) $$;

CREATE FUNCTION pin_hash(device text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT CASE WHEN device IS NULL THEN 0 ELSE hashtextextended(device, 1) END $$;

CREATE TABLE runs (
    id text COLLATE "C" PRIMARY KEY,
    workflow text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    digest text COLLATE "C" NOT NULL, -- of the work
    created_at double precision NOT NULL,
    series text COLLATE "C",
    key text COLLATE "C",
    priority bigint NOT NULL,
    pinned text COLLATE "C",
    timeout double precision NOT NULL,
    label text, -- what people call it
    batch text COLLATE "C", -- the name of the runs to which it belongs
    uses text COLLATE "C", -- of limits, as JSON
    work text COLLATE "C" NOT NULL, -- as JSON
    input text NOT NULL,
    revision bigint NOT NULL,
    status text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL,
    device text COLLATE "C",
    session text COLLATE "C",
    stop_request text,
    avoid text NOT NULL,
    offered smallint NOT NULL,
    due_at double precision,
    not_before double precision NOT NULL,
    waiting_since double precision,
    ended_at double precision,
    state text NOT NULL
) WITH (
    -- room for the next version of a row on its own page
    fillfactor = 75,
    -- the head of the queue is where the dead rows are, and every device walks over them
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- Each index is partial. An update that changes none of what they mention (a start, a wish) touches no index at all.
CREATE UNIQUE INDEX runs_by_key ON runs (key) WHERE key IS NOT NULL;
CREATE INDEX runs_offered ON runs (kind_hash(workflow, digest), pin_hash(pinned), (-priority), created_at, id)
    WHERE offered = 1;
CREATE INDEX runs_avoiding ON runs (id) WHERE offered = 1 AND avoid <> '';
CREATE INDEX runs_by_session ON runs (session) WHERE session IS NOT NULL;
CREATE INDEX runs_by_series ON runs (series, id) WHERE series IS NOT NULL;
CREATE INDEX runs_open ON runs (id) WHERE ended_at IS NULL;
CREATE INDEX runs_by_end ON runs (ended_at) WHERE ended_at IS NOT NULL;

-- Lists of runs, in their order. A run keeps its workflow, and changes its device only together with its session, which
-- has an index, too. The index of batches has no column that changes.
CREATE INDEX runs_by_workflow ON runs (workflow, id);
CREATE INDEX runs_by_device ON runs (device, id) WHERE device IS NOT NULL;
CREATE INDEX runs_by_batch ON runs (batch, id) WHERE batch IS NOT NULL;

-- What uses limits, of runs that have not ended. What waits for its limits has 2 in `offered`.
CREATE INDEX runs_limited ON runs (uses, workflow, batch, priority, offered, id)
    WHERE uses IS NOT NULL AND ended_at IS NULL;
CREATE INDEX runs_waiting_for_limits ON runs (id) WHERE offered = 2;

CREATE TABLE sessions (
    id text COLLATE "C" PRIMARY KEY,
    device text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    state text COLLATE "C" NOT NULL,
    draining smallint NOT NULL,
    beat_at double precision NOT NULL,
    profile text NOT NULL,
    terms text NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX sessions_not_ended ON sessions (id) WHERE state <> 'ended';

CREATE TABLE registers (
    key text COLLATE "C" PRIMARY KEY,
    value text NOT NULL,
    revision bigint NOT NULL
) WITH (fillfactor = 50);

-- What the owner of a run said last of its progress, in JSON. It counts while the run is the session's, at that epoch;
-- what counts no more is removed by the session's next heartbeat, or when the session is forgotten.
CREATE TABLE reports (
    session text COLLATE "C" NOT NULL,
    run text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL,
    progress text,
    tail text NOT NULL,
    PRIMARY KEY (session, run)
) WITH (fillfactor = 50);

CREATE TABLE notices (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at double precision NOT NULL,
    run text COLLATE "C",
    notice text NOT NULL
);

CREATE INDEX notices_by_run ON notices (run, number) WHERE run IS NOT NULL;

CREATE TABLE blobs (
    name text COLLATE "C" PRIMARY KEY,
    kept_at double precision NOT NULL,
    data bytea NOT NULL
);

ALTER TABLE blobs ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE blob_uses (
    run text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    PRIMARY KEY (run, name)
);

CREATE INDEX blob_uses_by_name ON blob_uses (name);


-- Committing and beating: each is one call, whatever it is made of.

CREATE FUNCTION now_in_seconds() RETURNS double precision LANGUAGE sql VOLATILE PARALLEL SAFE AS
$$ SELECT extract(epoch FROM clock_timestamp())::double precision $$;


-- Raises what the client knows as Conflict.
CREATE FUNCTION refuse(what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'AS001', MESSAGE = what;
END
$$;


-- One commit of anything but runs, as part of commit_runs. `others` has lists of objects under `expected` (sessions
-- that have to be at a revision), `sessions`, `registers` (those that are `kept` have to be at a revision, and stay as
-- they are) and `notices`, and `uses` (blobs that a run refers to).
--
-- Rows are locked in the order of their ids, sessions before registers before runs, so that two commits wait for each
-- other at most in one direction. A session that is expected is locked: no heartbeat gets in before the commit ends. So
-- is a register that is kept, though several may keep it at once.
CREATE FUNCTION commit_others(others json) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT * FROM json_to_recordset(others -> 'expected') AS wanted (id text, revision bigint)
        ORDER BY id COLLATE "C"
    LOOP
        PERFORM 1 FROM sessions WHERE id = one.id AND revision = one.revision FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            PERFORM refuse('session ' || one.id);
        END IF;
    END LOOP;

    FOR one IN
        SELECT * FROM json_to_recordset(others -> 'sessions') AS new (
            id text, device text, revision bigint, state text, draining smallint, profile text, terms text,
            expected bigint
        ) ORDER BY id COLLATE "C"
    LOOP
        IF one.expected IS NULL THEN
            INSERT INTO sessions (id, device, revision, state, draining, beat_at, profile, terms)
            VALUES (one.id, one.device, one.revision, one.state, one.draining, now_in_seconds(), one.profile, one.terms)
            ON CONFLICT DO NOTHING;
        ELSE
            UPDATE sessions SET
                device = one.device, revision = one.revision, state = one.state, draining = one.draining,
                -- a heartbeat from the future was written before the clock was set back
                beat_at = least(beat_at, now_in_seconds()), profile = one.profile, terms = one.terms
            WHERE id = one.id AND revision = one.expected;
        END IF;
        IF NOT FOUND THEN
            PERFORM refuse('session ' || one.id);
        END IF;
    END LOOP;

    FOR one IN
        SELECT * FROM json_to_recordset(others -> 'registers') AS new (
            key text, value text, expected bigint, kept boolean
        ) ORDER BY key COLLATE "C"
    LOOP
        IF one.kept THEN
            PERFORM 1 FROM registers WHERE key = one.key AND revision = one.expected FOR SHARE;
        ELSIF one.expected IS NOT NULL AND one.value IS NOT NULL THEN
            UPDATE registers SET value = one.value, revision = revision + 1
            WHERE key = one.key AND revision = one.expected;
        ELSIF one.expected IS NOT NULL THEN
            DELETE FROM registers WHERE key = one.key AND revision = one.expected;
        ELSIF one.value IS NOT NULL THEN
            INSERT INTO registers (key, value, revision) VALUES (one.key, one.value, 1) ON CONFLICT DO NOTHING;
        ELSE
            PERFORM 1 WHERE NOT EXISTS (SELECT 1 FROM registers WHERE key = one.key);
        END IF;
        IF NOT FOUND THEN
            PERFORM refuse('register ' || one.key);
        END IF;
    END LOOP;

    INSERT INTO blob_uses (run, name)
    SELECT run, name FROM json_to_recordset(others -> 'uses') AS new (run text, name text)
    ORDER BY run COLLATE "C", name COLLATE "C"
    ON CONFLICT DO NOTHING;
END
$$;


-- Notices are numbered one commit after the other: who has seen number 7 will never find a new number 6.
CREATE FUNCTION add_notices(given json) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock('notices'::regclass::oid::int, 0);
    INSERT INTO notices (at, run, notice)
    SELECT at, run, notice FROM json_to_recordset(given) AS new (at double precision, run text, notice text);
END
$$;


-- A run in place of the revision that is expected, and one that must not be there yet.
CREATE TYPE changed_run AS (
    id text, expected bigint, revision bigint, status text, epoch bigint, device text, session text, stop_request text,
    avoid text, offered smallint, due_at double precision, not_before double precision, waiting_since double precision,
    ended_at double precision, state text
);
CREATE TYPE new_run AS (
    id text, workflow text, version bigint, digest text, created_at double precision, series text, key text, priority bigint,
    pinned text, timeout double precision, label text, batch text, uses text, work text, input text, revision bigint,
    status text, epoch bigint, device text,
    session text, stop_request text, avoid text, offered smallint, due_at double precision, not_before double precision,
    waiting_since double precision, ended_at double precision, state text
);


-- (Not in plain SQL: until version 18 the server would plan such a function anew with every call.)
CREATE FUNCTION change_runs(given changed_run[]) RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    ids text[];
BEGIN
    WITH done AS (
        UPDATE runs SET
            revision = new.revision, status = new.status, epoch = new.epoch, device = new.device,
            session = new.session, stop_request = new.stop_request, avoid = new.avoid, offered = new.offered,
            due_at = new.due_at, not_before = new.not_before, waiting_since = new.waiting_since,
            ended_at = new.ended_at, state = new.state
        FROM unnest(given) AS new
        WHERE runs.id = new.id AND runs.revision = new.expected
        RETURNING runs.id
    )
    SELECT array_agg(id) INTO ids FROM done;
    RETURN coalesce(ids, '{}');
END
$$;


CREATE FUNCTION add_runs(given new_run[]) RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    ids text[];
BEGIN
    WITH done AS (
        INSERT INTO runs (
            id, workflow, version, digest, created_at, series, key, priority, pinned, timeout, label, batch, uses, work,
            input,
            revision, status, epoch, device, session, stop_request, avoid, offered,
            due_at, not_before, waiting_since, ended_at, state
        )
        SELECT * FROM unnest(given)
        ON CONFLICT DO NOTHING
        RETURNING id
    )
    SELECT array_agg(id) INTO ids FROM done;
    RETURN coalesce(ids, '{}');
END
$$;


-- Put runs. The ids of those that went through are in `done`, of those that should have been new and were not in
-- `present`. With `whole` it is all or nothing: one that does not match is refused, and with it the transaction. The
-- runs are in the order of their ids.
CREATE FUNCTION commit_runs(
    whole boolean, others json, changes changed_run[], additions new_run[], OUT done text[], OUT present text[]
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    added text[];
BEGIN
    done := '{}';
    present := '{}';
    IF others IS NOT NULL THEN
        PERFORM commit_others(others);
    END IF;
    IF cardinality(changes) > 0 THEN
        done := change_runs(changes);
        IF whole AND cardinality(done) < cardinality(changes) THEN
            PERFORM refuse('run ' || (SELECT min(id) FROM unnest(changes) WHERE id <> ALL (done)));
        END IF;
    END IF;
    IF cardinality(additions) > 0 THEN
        added := add_runs(additions);
        IF cardinality(added) < cardinality(additions) THEN
            present := ARRAY(
                SELECT runs.id FROM unnest(additions) AS new JOIN runs USING (id) WHERE id <> ALL (added)
            );
            IF whole AND cardinality(present) > 0 THEN
                PERFORM refuse('run ' || present[1]);
            ELSIF whole THEN
                PERFORM refuse('key ' || (SELECT min(key) FROM unnest(additions) WHERE id <> ALL (added)));
            END IF;
        END IF;
        done := done || added;
    END IF;
    IF others -> 'notices' IS NOT NULL THEN
        PERFORM add_notices(others -> 'notices');
    END IF;
END
$$;


-- One heartbeat. It is a function because of its third statement: the first may have waited for a commit that takes
-- runs away from this session, and what is read after that must be what that commit left. Within one statement it
-- would be what was there before; each statement of a volatile function sees everything that is committed.
CREATE FUNCTION beat(
    asking text, new_profile text, r_run text[], r_epoch bigint[], r_progress text[], r_tail text[],
    OUT now double precision, OUT is_draining smallint, OUT held_runs text[], OUT held_epochs bigint[],
    OUT held_statuses text[], OUT held_requests text[]
) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE sessions SET revision = revision + 1, beat_at = now_in_seconds(), profile = new_profile
    WHERE id = asking AND state = 'open'
    RETURNING draining INTO is_draining;
    IF FOUND THEN
        SELECT coalesce(array_agg(id), '{}'), coalesce(array_agg(epoch), '{}'),
            coalesce(array_agg(status), '{}'), coalesce(array_agg(stop_request), '{}')
        INTO held_runs, held_epochs, held_statuses, held_requests
        FROM runs WHERE session = asking;

        IF cardinality(r_run) > 0 THEN
            INSERT INTO reports (session, run, epoch, progress, tail)
            SELECT asking, said.run, said.epoch, said.progress, said.tail
            FROM unnest(r_run, r_epoch, r_progress, r_tail) AS said (run, epoch, progress, tail)
            JOIN unnest(held_runs, held_epochs) AS held (run, epoch) USING (run, epoch)
            ON CONFLICT (session, run) DO UPDATE
            SET epoch = excluded.epoch, progress = excluded.progress, tail = excluded.tail;
        END IF;
        DELETE FROM reports WHERE session = asking AND run <> ALL (held_runs);
    END IF;
    now := now_in_seconds();
END
$$;


-- Taking from the queue.

-- The queue is one list for each kind of run and each device that runs are pinned to (and one for each kind that is
-- pinned to nobody). These are the lists that some devices may take from, those of the kinds in `not_kinds` not among
-- them. What nobody here may have is passed over as a whole, however long it is. The kinds are found from the ends of
-- their lists: at the heads are the dead rows of those that were taken.
CREATE FUNCTION lists_of(devices text[], not_kinds text[]) RETURNS TABLE (kind bigint, pin bigint)
LANGUAGE sql STABLE AS $$
    WITH RECURSIVE kinds AS (
        (
            SELECT kind_hash(workflow, digest) AS kind, workflow, digest FROM runs WHERE offered = 1
            ORDER BY kind_hash(workflow, digest) DESC LIMIT 1
        )
        UNION ALL
        SELECT before.*
        FROM kinds, LATERAL (
            SELECT kind_hash(workflow, digest), workflow, digest FROM runs
            WHERE offered = 1 AND kind_hash(workflow, digest) < kinds.kind
            ORDER BY kind_hash(workflow, digest) DESC LIMIT 1
        ) AS before
    ), suitable AS (
        SELECT kind FROM kinds WHERE workflow || '@' || digest <> ALL (not_kinds)
    )
    SELECT kind, pin_hash(NULL) FROM suitable
    UNION ALL
    SELECT kind, pinned.pin FROM suitable, (SELECT DISTINCT pin_hash(name) AS pin FROM unnest(devices) AS name) AS pinned,
    LATERAL (
        SELECT 1 FROM runs
        WHERE offered = 1 AND kind_hash(workflow, digest) = suitable.kind AND pin_hash(runs.pinned) = pinned.pin
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
            WHERE offered = 1 AND kind_hash(workflow, digest) = list.kind AND pin_hash(pinned) = list.pin
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
        WHERE offered = 1 AND kind_hash(workflow, digest) = kinds[1] AND pin_hash(pinned) = pins[1]
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


-- The first `wanted` runs that some devices may have, as lock_offered finds them, without locks: the write of what is
-- taken compares revisions.
CREATE FUNCTION read_offered(
    devices text[], not_kinds text[], now double precision, avoiding text, above bigint, wanted bigint
) RETURNS SETOF runs LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    kinds bigint[];
    pins bigint[];
BEGIN
    SELECT array_agg(kind), array_agg(pin) INTO kinds, pins FROM lists_of(devices, not_kinds);
    IF cardinality(kinds) = 1 THEN -- so it is in most fleets, and there is nothing to merge
        RETURN QUERY
        SELECT * FROM runs
        WHERE offered = 1 AND kind_hash(workflow, digest) = kinds[1] AND pin_hash(pinned) = pins[1]
            AND not_before <= now AND strpos(avoid, avoiding) = 0 AND -priority < -above
        ORDER BY -priority, created_at, id
        LIMIT wanted;
    ELSIF cardinality(kinds) > 1 THEN
        RETURN QUERY
        SELECT runs.*
        FROM next_offered(kinds, pins, now, avoiding, above, -9223372036854775807, '-infinity', '', wanted) AS next
            JOIN runs USING (id)
        ORDER BY next.urgency, next.created_at, next.id
        LIMIT wanted;
    END IF;
END
$$;


-- Change runs that were read without locks. What another has locked is passed over, like what another has changed.
CREATE FUNCTION take_runs(given changed_run[]) RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    free text[];
BEGIN
    SELECT array_agg(id) INTO free FROM (
        SELECT runs.id FROM unnest(given) AS new JOIN runs ON runs.id = new.id AND runs.revision = new.expected
        FOR UPDATE OF runs SKIP LOCKED
    ) AS locked;
    IF cardinality(free) = cardinality(given) THEN
        RETURN change_runs(given);
    END IF;
    RETURN change_runs(ARRAY(SELECT new FROM unnest(given) AS new WHERE new.id = ANY (free)));
END
$$;


-- What each attempt at a run printed, in chunks of lines. `first` is the number of the first line of a chunk, `lines` how
-- many it has; `said` is JSON: the lines, or a reference to the blob that holds them.
CREATE TABLE logs (
    run text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL,
    first bigint NOT NULL,
    lines bigint NOT NULL,
    said text NOT NULL,
    PRIMARY KEY (run, epoch, first)
);


-- Write parts of logs: `drops` are ranges of chunks to delete, `chunks` are written in place of those with the same
-- number, `uses` are blobs that they refer to. With `held`, runs and epochs that a session owns, all else is left out;
-- without, a run that does not exist is refused. Returns how many chunks were written.
CREATE FUNCTION put_logs(given json, held text[], epochs bigint[]) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    absent text;
    number bigint;
BEGIN
    IF held IS NULL THEN
        SELECT min(new.run) INTO absent FROM json_to_recordset(given -> 'chunks') AS new (run text)
        WHERE NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = new.run);
        IF absent IS NOT NULL THEN
            PERFORM refuse('run ' || absent);
        END IF;
    END IF;

    DELETE FROM logs
    USING json_to_recordset(given -> 'drops') AS gone (run text, epoch bigint, low bigint, high bigint)
    WHERE logs.run = gone.run AND logs.epoch = gone.epoch AND logs.first >= gone.low AND logs.first < gone.high
        AND (held IS NULL OR EXISTS (
            SELECT 1 FROM unnest(held, epochs) AS own (run, epoch) WHERE own.run = gone.run AND own.epoch = gone.epoch
        ));

    INSERT INTO logs (run, epoch, first, lines, said)
    SELECT new.run, new.epoch, new.first, new.lines, new.said
    FROM json_to_recordset(given -> 'chunks') AS new (run text, epoch bigint, first bigint, lines bigint, said text)
    WHERE held IS NULL OR EXISTS (
        SELECT 1 FROM unnest(held, epochs) AS own (run, epoch) WHERE own.run = new.run AND own.epoch = new.epoch
    )
    ORDER BY new.run COLLATE "C", new.epoch, new.first
    ON CONFLICT (run, epoch, first) DO UPDATE SET lines = excluded.lines, said = excluded.said;
    GET DIAGNOSTICS number = ROW_COUNT;

    INSERT INTO blob_uses (run, name)
    SELECT new.run, new.name FROM json_to_recordset(given -> 'uses') AS new (run text, name text)
    ORDER BY new.run COLLATE "C", new.name COLLATE "C"
    ON CONFLICT DO NOTHING;
    RETURN number;
END
$$;


-- The plans as lists show them. A plan is a register `plan/NAME`, its head: the trigger keeps one row here for each. The
-- columns are those by which lists are filtered. `summary` is JSON that the writer of the plan adds in the commit of each
-- step; null after a write of the head alone, until somebody reads the plan in full.
CREATE TABLE plans (
    name text COLLATE "C" PRIMARY KEY,
    created_at double precision NOT NULL,
    state text COLLATE "C",
    owner text COLLATE "C",
    cancelling boolean,
    file text COLLATE "C",
    tags text[] NOT NULL,
    summary text
) WITH (fillfactor = 50);

CREATE INDEX plans_by_creation ON plans (created_at, name);


-- Write what the head of a plan says into its row. A value of another type than that of its column is left out.
CREATE FUNCTION list_plan(key text, value text) RETURNS void LANGUAGE sql AS $$
    INSERT INTO plans (name, created_at, state, owner, cancelling, file, tags, summary)
    SELECT
        substr(key, 6),
        CASE json_typeof(head -> 'created_at') WHEN 'number' THEN (head ->> 'created_at')::double precision ELSE 0 END,
        head ->> 'state', head ->> 'owner', head ->> 'cancelling' = 'true', head ->> 'file',
        CASE json_typeof(head -> 'tags') WHEN 'array' THEN ARRAY(SELECT json_array_elements_text(head -> 'tags'))
            ELSE '{}' END,
        NULL
    FROM (SELECT value::json AS head) AS decoded
    ON CONFLICT (name) DO UPDATE SET
        state = excluded.state, owner = excluded.owner, cancelling = excluded.cancelling, file = excluded.file,
        tags = excluded.tags, summary = NULL
$$;


CREATE FUNCTION follow_head() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        DELETE FROM plans WHERE name = substr(OLD.key, 6);
    ELSE
        PERFORM list_plan(NEW.key, NEW.value);
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER plan_written AFTER INSERT OR UPDATE ON registers FOR EACH ROW
WHEN (starts_with(NEW.key, 'plan/')) EXECUTE FUNCTION follow_head();

CREATE TRIGGER plan_removed AFTER DELETE ON registers FOR EACH ROW
WHEN (starts_with(OLD.key, 'plan/')) EXECUTE FUNCTION follow_head();

-- Write the summaries of plans. Returns how many there were; a plan that does not exist is refused.
CREATE FUNCTION put_plans(given json) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    absent text;
    number bigint;
BEGIN
    SELECT min(new.name) INTO absent FROM json_to_recordset(given) AS new (name text)
    WHERE NOT EXISTS (SELECT 1 FROM plans WHERE plans.name = new.name);
    IF absent IS NOT NULL THEN
        PERFORM refuse('plan ' || absent);
    END IF;
    UPDATE plans SET state = new.state, summary = new.summary
    FROM json_to_recordset(given) AS new (name text, state text, summary text)
    WHERE plans.name = new.name;
    GET DIAGNOSTICS number = ROW_COUNT;
    RETURN number;
END
$$;
