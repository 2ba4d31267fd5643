-- Every statement except the migrations. {run} and {session} stand for the columns of these records, in the order of
-- row_codec. Statements under "quick" use one generic plan, which uses indexes only. Statements under "broad" are planned
-- for each call, so that a condition whose argument is null costs nothing.


-- quick: writing ------------------------------------------------------------------------------------------------------

-- name: commit_runs
-- With the place of the commit in the history of the database, as in the following ones.
SELECT done, present, {place} FROM commit_runs($1, $2, $3, $4)

-- name: commit_runs_and_more
-- The logs after the runs: they may be those of new runs. The summaries of plans after their heads.
SELECT done, present, {place}, written, listed
FROM commit_runs($1, $2, $3, $4), LATERAL (
    SELECT CASE WHEN $5::json IS NOT NULL THEN put_logs($5::json, NULL, NULL) END AS written,
        CASE WHEN $6::json IS NOT NULL THEN put_plans($6::json) END AS listed
    WHERE done IS NOT NULL
) AS more

-- name: set_priorities
UPDATE runs SET priority = wanted.priority FROM unnest($1::text[], $2::bigint[]) AS wanted (id, priority)
WHERE runs.id = wanted.id

-- name: change_runs
SELECT done, {place} FROM change_runs($1) AS done

-- name: take_runs
SELECT done, {place} FROM take_runs($1) AS done

-- name: place
SELECT {place}

-- name: offered
SELECT {run} FROM lock_offered($1, $2, $3, $4, $5, $6)

-- name: head
-- The same without locks.
SELECT {run} FROM read_offered($1, $2, $3, $4, $5, $6)

-- name: offered_further
-- The same without locks, after a place in the queue; the last row has `more`.
WITH lists AS (SELECT array_agg(kind) AS kinds, array_agg(pin) AS pins FROM lists_of($1, $2))
SELECT {run_of_runs}, found.more
FROM lists, next_offered(lists.kinds, lists.pins, $3, $4, $5, $6, $7, $8, $9) AS found JOIN runs USING (id)
ORDER BY found.urgency, found.created_at, found.id

-- name: lock_runs
SELECT runs.id FROM unnest($1::text[], $2::bigint[]) AS wanted (id, revision)
JOIN runs ON runs.id = wanted.id AND runs.revision = wanted.revision
FOR UPDATE OF runs SKIP LOCKED

-- name: heartbeat
SELECT now, is_draining, held_runs, held_epochs, held_statuses, held_requests FROM beat($1, $2, $3, $4, $5, $6)

-- name: heartbeat_with_logs
SELECT now, is_draining, held_runs, held_epochs, held_statuses, held_requests, written
FROM beat($1, $2, $3, $4, $5, $6),
    LATERAL (SELECT put_logs($7::json, coalesce(held_runs, '{}'), coalesce(held_epochs, '{}')) AS written) AS logged

-- name: put_blob
INSERT INTO blobs (name, kept_at, data) VALUES ($1, now_in_seconds(), $2)
ON CONFLICT (name) DO UPDATE SET kept_at = excluded.kept_at

-- name: tell
-- Without waiting for the disk: if it is lost, the next poll finds the change.
SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)

-- name: clock
SELECT now_in_seconds()


-- quick: reading ------------------------------------------------------------------------------------------------------

-- name: run
SELECT {run} FROM runs WHERE id = $1

-- name: register
SELECT key, value, revision FROM registers WHERE key = $1

-- name: registers
SELECT key, value, revision FROM registers WHERE starts_with(key, $1) ORDER BY key LIMIT $2

-- name: sessions
-- And a row for each session that has runs, which has only its id and their number. Both are read by index, also when
-- the tables have no statistics yet; a join of the two would read all runs then.
SELECT {session}, 0 AS used FROM sessions WHERE ($1 OR state <> 'ended') AND ($2::text IS NULL OR device = $2)
UNION ALL
SELECT session, NULL, NULL, NULL, NULL, NULL, NULL, NULL, count(*) FROM runs
WHERE session IS NOT NULL AND ($2::text IS NULL OR session IN (SELECT id FROM sessions WHERE device = $2))
GROUP BY session

-- name: reports
SELECT reports.run, reports.epoch, reports.progress, reports.tail
FROM runs JOIN reports ON reports.session = runs.session AND reports.run = runs.id AND reports.epoch = runs.epoch
WHERE runs.id = ANY ($1)

-- name: log
SELECT epoch, first, lines, said FROM logs
WHERE run = $1 AND (epoch > $2 OR (epoch = $2 AND first + lines - 1 > $3))
ORDER BY epoch, first

-- name: notices
SELECT number, notice FROM notices WHERE number > $1 ORDER BY number LIMIT $2

-- name: notices_of_run
SELECT number, notice FROM notices WHERE run = $3 AND number > $1 ORDER BY number LIMIT $2

-- name: blob
SELECT data FROM blobs WHERE name = $1


-- broad ---------------------------------------------------------------------------------------------------------------

-- name: find
SELECT {run} FROM runs
WHERE ($1::text[] IS NULL OR status = ANY ($1))
    AND ($2::text IS NULL OR workflow = $2)
    AND ($3::text IS NULL OR device = $3)
    AND ($4::text IS NULL OR (session = $4 AND status IN ('assigned', 'claimed', 'processing')))
    AND ($5::text IS NULL OR series = $5)
    AND ($6::text IS NULL OR key = $6)
    AND ($7::smallint IS NULL OR offered = $7 OR ($7 = 1 AND offered = 2))
    AND ($8::boolean IS NULL OR (avoid <> '') = $8)
    AND ($9::double precision IS NULL OR due_at < $9)
    AND ($10::double precision IS NULL OR ended_at < $10)
    AND ($11::double precision IS NULL OR waiting_since < $11)
    AND ($12::text IS NULL OR strpos(id, $12) > 0)
    AND ($13::text IS NULL OR {after} $13)
    AND ($16::text[] IS NULL OR key = ANY ($16))
    AND ($17::text IS NULL OR strpos(lower(label COLLATE "C"), $17) > 0 OR strpos(lower(key), $17) > 0
        OR (label IS NULL AND strpos(lower(input COLLATE "C"), $18) > 0))
    AND ($15::boolean IS NULL OR ended_at IS NULL) -- implied by the other conditions; lets the planner use a partial index
    AND ($19::text IS NULL OR {until} $19)
    AND ($20::text IS NULL OR (batch = $20
        AND NOT EXISTS (SELECT 1 FROM runs AS retry WHERE retry.key = 'retry/' || runs.id)))
    AND (NOT $21::boolean OR strpos(state, ',"files":"') > 0) -- no text inside the record has these quotes
ORDER BY id {order}
LIMIT $14

-- name: scan_end
-- The run that a search has looked at last, and the one after it.
SELECT id FROM runs
WHERE ($1::text IS NULL OR batch = $1)
    AND ($2::text IS NULL OR series = $2)
    AND ($3::text IS NULL OR device = $3)
    AND ($4::text IS NULL OR workflow = $4)
    AND ($5::text IS NULL OR {after} $5)
    AND ($6::boolean IS NULL OR ended_at IS NULL)
ORDER BY id {order}
LIMIT 2 OFFSET $7

-- name: plans
SELECT name, created_at, summary,
    (SELECT value FROM registers WHERE key = 'budget/' || name)
FROM plans
WHERE ($1::text[] IS NULL OR CASE
        WHEN state IN ('completed', 'failed', 'partially_failed', 'cancelled') THEN state
        WHEN cancelling THEN 'cancelling'
        WHEN state = 'executing' AND coalesce(owner, '') <> ALL ($2::text[]) THEN 'at_rest'
        ELSE state
    END = ANY ($1))
    AND ($3::text IS NULL OR lower(name) LIKE $3)
    AND ($4::text IS NULL OR file = $4)
    AND ($5::text IS NULL OR tags @> ARRAY[$5])
    AND created_at >= $6
    AND (created_at, name) < ($7, $8){names}
ORDER BY {order}
LIMIT $9

-- name: orphans
SELECT {run_of_runs}, {session_of_sessions}
FROM sessions JOIN runs ON runs.session = sessions.id
WHERE sessions.state = 'ended' OR (
    runs.status <> 'assigned'
    AND sessions.beat_at + CASE
        WHEN strpos(sessions.device, '@') > 0 THEN runs.timeout
        ELSE least(runs.timeout, nullif(substring(sessions.terms from '"timeout":([0-9.e+]+)')::double precision, 90.0))
    END < $1
)
LIMIT $2

-- name: waiting
SELECT workflow, min(work), pinned, count(*), min(coalesce(waiting_since, 0))
FROM runs WHERE offered = 1 OR offered = 2 GROUP BY workflow, digest, pinned

-- name: limited
-- Runs that wait for limits, and runs that hold some: of the others, which are paused or wait for their series, none.
SELECT uses, workflow, batch, priority, offered = 2 AS waits, count(*), min(id) FROM runs
WHERE uses IS NOT NULL AND ended_at IS NULL AND (offered = 2 OR session IS NOT NULL)
GROUP BY uses, workflow, batch, priority, waits
ORDER BY uses, workflow, batch, priority, waits

-- name: limited_runs
SELECT {run} FROM runs
WHERE uses = $1 AND ended_at IS NULL AND workflow = $2 AND batch IS NOT DISTINCT FROM $3 AND priority = $4
    AND CASE WHEN $5::boolean THEN offered = 2 ELSE session IS NOT NULL END
    AND id > $6
ORDER BY id
LIMIT $7

-- name: counts
SELECT status, count(*) FROM runs GROUP BY status

-- name: batches
-- The batches with names between the arguments. In the JSON of a run that failed, these words stand nowhere else: a quote
-- inside a text is escaped.
SELECT batch, status, status = 'failed' AND strpos(state, '"cancelled":true') > 0 AS cancelled,
    count(*), min(created_at), max(ended_at)
FROM runs
WHERE batch >= $1 AND batch <= $2
    AND NOT EXISTS (SELECT 1 FROM runs AS retry WHERE retry.key = 'retry/' || runs.id)
GROUP BY batch, status, cancelled
ORDER BY batch, status, cancelled

-- name: last_ends
SELECT ended_at FROM runs WHERE batch = $1 AND ended_at IS NOT NULL ORDER BY ended_at DESC LIMIT $2

-- name: prune_runs
-- Selected once: a plan may evaluate the subquery of IN repeatedly, and would get further rows each time. The runs of a
-- plan stay while its head does not say when it ended: the subquery is one value for each run, so that no join with all
-- heads comes of it. Either any runs, by their end, or those whose key has a prefix, by their keys.
WITH chosen AS MATERIALIZED (
    SELECT id FROM runs
    WHERE ended_at < $1
        AND NOT (starts_with(runs.key, 'plan:') AND coalesce((
            SELECT coalesce(json_typeof(value::json -> 'ended_at'), '') <> 'number' FROM registers
            WHERE registers.key = 'plan/' || split_part(substr(runs.key, 6), '/', 1)
        ), false))
        {only}
    ORDER BY {order} LIMIT $2 FOR UPDATE SKIP LOCKED
), old AS (
    DELETE FROM runs WHERE id IN (SELECT id FROM chosen) RETURNING id
), unused AS (
    DELETE FROM blob_uses WHERE run IN (SELECT id FROM old)
), unlogged AS (
    DELETE FROM logs WHERE run IN (SELECT id FROM old)
)
SELECT count(*) FROM old

-- name: prune_sessions
WITH old AS (
    DELETE FROM sessions
    WHERE state = 'ended' AND beat_at < $1 AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.session = sessions.id)
    RETURNING id
)
DELETE FROM reports WHERE session IN (SELECT id FROM old)

-- name: prune_notices
DELETE FROM notices WHERE at < $1

-- name: prune_blobs
-- A young blob may belong to a run that is not committed yet.
DELETE FROM blobs
WHERE kept_at < $1 AND NOT EXISTS (SELECT 1 FROM blob_uses WHERE blob_uses.name = blobs.name)
    AND name NOT IN (
        SELECT coalesce(substring(value FROM '"\$blob": ?"([0-9a-f]+)"'), '')
        FROM registers WHERE starts_with(key, 'uses-blob/')
    )

-- name: all_runs
SELECT {run} FROM runs ORDER BY id

-- name: all_sessions
SELECT {session} FROM sessions ORDER BY id

-- name: all_registers
SELECT key, value, revision FROM registers ORDER BY key

-- name: all_notices
SELECT number, notice FROM notices ORDER BY number

-- name: all_logs
SELECT run, epoch, first, lines, said FROM logs ORDER BY run, epoch, first

-- name: logs_without_runs
SELECT DISTINCT run FROM logs WHERE NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = logs.run) ORDER BY run

-- name: all_blobs
SELECT data FROM blobs ORDER BY name

-- name: careless_settings
SELECT name, setting FROM pg_settings
WHERE (name IN ('fsync', 'full_page_writes', 'synchronous_commit') AND setting = 'off')
    OR (name = 'synchronous_commit' AND setting = 'local')
ORDER BY name

-- name: standbys
-- Whether commits wait for a standby, and how many are connected. Who subscribes to changes of tables is none.
SELECT current_setting('synchronous_standby_names') <> '', count(*) FROM pg_stat_replication
WHERE state IS DISTINCT FROM 'backup' AND NOT EXISTS (
    SELECT 1 FROM pg_replication_slots WHERE active_pid = pg_stat_replication.pid AND slot_type = 'logical'
)

-- name: runs_of_missing_sessions
SELECT runs.id, runs.session FROM runs LEFT JOIN sessions ON sessions.id = runs.session
WHERE runs.session IS NOT NULL AND sessions.id IS NULL ORDER BY runs.id

-- name: missing_blobs
SELECT run, name FROM blob_uses WHERE NOT EXISTS (SELECT 1 FROM blobs WHERE blobs.name = blob_uses.name) ORDER BY run

-- name: missing_blobs_of_registers
SELECT key, name
FROM (
    SELECT key, substring(value FROM '"\$blob": ?"([0-9a-f]+)"') AS name
    FROM registers WHERE starts_with(key, 'uses-blob/')
) AS uses
WHERE name IS NOT NULL AND NOT EXISTS (SELECT 1 FROM blobs WHERE blobs.name = uses.name) ORDER BY key

-- name: sums_of_blobs
SELECT name, encode(sha256(data), 'hex') FROM blobs ORDER BY name

-- name: owner_of_schema
-- Whose the schema is: the role that owns it, whether it may be used (it is ours, or a superuser's, who may do anything
-- in any case), our own role, and the roles that may create objects in it. No row if it does not exist.
SELECT
    owner.rolname,
    (owner.rolsuper OR owner.rolname = current_user
        OR (owner.rolname = 'pg_database_owner' AND pg_has_role(current_user, owner.oid, 'USAGE')
            AND NOT (SELECT me.rolsuper FROM pg_roles me WHERE me.rolname = current_user))),
    current_user::text,
    ARRAY(
        SELECT coalesce(role.rolname::text, 'PUBLIC')
        FROM aclexplode(spaces.nspacl) granted LEFT JOIN pg_roles role ON role.oid = granted.grantee
        WHERE granted.privilege_type = 'CREATE' AND granted.grantee <> spaces.nspowner
            AND role.rolname IS DISTINCT FROM current_user AND NOT coalesce(role.rolsuper, false)
    )
FROM pg_namespace spaces JOIN pg_roles owner ON owner.oid = spaces.nspowner
WHERE spaces.nspname = $1

-- name: objects_of_schema
-- Everything in the schema that executes or holds something: its kind, its name, and whether its owner is that of the
-- schema.
SELECT kind, name, owner = spaces.nspowner
FROM pg_namespace spaces, LATERAL (
    SELECT CASE relkind WHEN 'r' THEN 'table' WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view'
            WHEN 'f' THEN 'foreign table' ELSE 'partitioned table' END AS kind, relname::text AS name, relowner AS owner
        FROM pg_class WHERE relnamespace = spaces.oid AND relkind IN ('r', 'v', 'm', 'f', 'p')
    UNION ALL
    SELECT 'function', proname::text, proowner FROM pg_proc WHERE pronamespace = spaces.oid
    UNION ALL
    SELECT 'operator', oprname::text, oprowner FROM pg_operator WHERE oprnamespace = spaces.oid
    UNION ALL
    SELECT 'trigger', tgname::text, relowner FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
        WHERE relnamespace = spaces.oid AND NOT tgisinternal
    UNION ALL
    SELECT 'rule', rulename::text, relowner FROM pg_rewrite JOIN pg_class ON pg_class.oid = ev_class
        WHERE relnamespace = spaces.oid AND relkind = 'r'
    UNION ALL
    SELECT 'policy', polname::text, relowner FROM pg_policy JOIN pg_class ON pg_class.oid = polrelid
        WHERE relnamespace = spaces.oid
    UNION ALL
    -- its rows are read as those of our table, in whatever schema it is
    SELECT 'child table', inhrelid::regclass::text, child.relowner
        FROM pg_inherits JOIN pg_class parent ON parent.oid = inhparent JOIN pg_class child ON child.oid = inhrelid
        WHERE parent.relnamespace = spaces.oid AND parent.relkind = 'r'
) objects
WHERE spaces.nspname = $1

-- name: inert_objects_of_schema
-- What executes and holds nothing, and so does not keep a store from being opened: kind and name. The sequence of an
-- identity column, the type of a table and the array of a type belong to these.
SELECT kind, name
FROM pg_namespace spaces, LATERAL (
    SELECT 'sequence' AS kind, relname::text AS name FROM pg_class
        WHERE relnamespace = spaces.oid AND relkind = 'S' AND NOT EXISTS (
            SELECT 1 FROM pg_depend WHERE objid = pg_class.oid AND classid = 'pg_class'::regclass AND deptype = 'i')
    UNION ALL
    SELECT 'type', typname::text FROM pg_type LEFT JOIN pg_class ON pg_class.oid = typrelid
        WHERE typnamespace = spaces.oid AND coalesce(relkind, 'c') = 'c'
            AND NOT EXISTS (SELECT 1 FROM pg_type element WHERE element.typarray = pg_type.oid)
) objects
WHERE spaces.nspname = $1

-- name: disabled_triggers
-- Triggers that do not fire for the writes of the store: the name, and name and table for a statement.
SELECT tgname::text, quote_ident(tgname), format('%I.%I', nspname, relname)
FROM pg_namespace spaces JOIN pg_class ON relnamespace = spaces.oid JOIN pg_trigger ON tgrelid = pg_class.oid
WHERE spaces.nspname = $1 AND tgenabled IN ('D', 'R')
ORDER BY tgname

-- name: write_grants
-- What other roles were granted on the tables of the schema, and on their columns, that changes what is stored or
-- executed: the role, empty for PUBLIC; the privileges; the tables. Role, columns and tables are quoted for a statement.
-- Owners and superusers may do everything in any case. Our own role needs its privileges, and so does a role that we
-- are a member of; a superuser counts as a member of all roles.
WITH granted AS (
    SELECT format('%I.%I', nspname, relname) AS relation, acl.grantee, acl.privilege_type AS privilege, NULL AS name
    FROM pg_namespace spaces JOIN pg_class ON relnamespace = spaces.oid, aclexplode(relacl) acl
    WHERE spaces.nspname = $1 AND acl.grantee <> relowner
    UNION
    SELECT format('%I.%I', nspname, relname), acl.grantee, acl.privilege_type, quote_ident(attname)
    FROM pg_namespace spaces JOIN pg_class ON relnamespace = spaces.oid
        JOIN pg_attribute ON attrelid = pg_class.oid, aclexplode(attacl) acl
    WHERE spaces.nspname = $1 AND acl.grantee <> relowner
), privileges AS (
    SELECT relation, grantee, privilege || coalesce(' (' || string_agg(name, ', ' ORDER BY name) || ')', '') AS text
    FROM granted
    WHERE privilege IN ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER')
    GROUP BY relation, grantee, privilege, name IS NULL
), of_tables AS (
    SELECT relation, grantee, array_agg(text ORDER BY text) AS texts FROM privileges GROUP BY relation, grantee
)
SELECT coalesce(quote_ident(rolname), ''), texts, array_agg(relation ORDER BY relation)
FROM of_tables LEFT JOIN pg_roles role ON role.oid = grantee
WHERE NOT coalesce(rolsuper, false) AND rolname IS DISTINCT FROM current_user AND NOT (
    rolname IS NOT NULL AND pg_has_role(current_user, grantee, 'USAGE')
    AND NOT (SELECT me.rolsuper FROM pg_roles me WHERE me.rolname = current_user)
)
GROUP BY rolname, texts
ORDER BY rolname NULLS FIRST, texts

-- name: event_triggers
SELECT evtname::text, quote_ident(evtname), evtfoid::regprocedure::text FROM pg_event_trigger WHERE evtenabled <> 'D' ORDER BY evtname

-- name: definitions_of_schema
-- What the server itself says of everything in the schema that decides what is stored and executed: kind, name and
-- definition. The schema is the first of the search path, so that names in it are not qualified, except that of a
-- function. Options for storage are left to the operator. NOT NULL is part of a column: only later servers have it as a
-- constraint, too.
SELECT kind, name, definition
FROM pg_namespace spaces, LATERAL (
    SELECT CASE relkind WHEN 'c' THEN 'type' ELSE 'table' END AS kind, relname::text AS name,
        concat_ws(' ', relkind, relpersistence, relrowsecurity, relforcerowsecurity, relispartition) AS definition
        FROM pg_class WHERE relnamespace = spaces.oid AND relkind IN ('r', 'p', 'c')
    UNION ALL
    SELECT 'column', relname || '.' || attname,
        concat_ws(
            ' ', format_type(atttypid, atttypmod), attcollation::regcollation, attnotnull, attidentity, attgenerated,
            pg_get_expr(adbin, adrelid)
        )
        FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
        LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE relnamespace = spaces.oid AND relkind IN ('r', 'p', 'c') AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT 'constraint', conname::text, concat_ws(' ', conrelid::regclass, pg_get_constraintdef(oid), convalidated)
        FROM pg_constraint WHERE connamespace = spaces.oid AND contype <> 'n'
    UNION ALL
    SELECT 'index', relname::text, concat_ws(' ', pg_get_indexdef(indexrelid, 0, true), indisvalid, indisready)
        FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid WHERE relnamespace = spaces.oid
    UNION ALL
    SELECT 'function', format('%s(%s)', proname, pg_get_function_identity_arguments(oid)),
        regexp_replace(pg_get_functiondef(oid), '^(CREATE OR REPLACE \w+ )' || quote_ident($1) || '\.', '\1')
        FROM pg_proc WHERE pronamespace = spaces.oid AND prokind IN ('f', 'p', 'w')
    UNION ALL
    SELECT 'trigger', tgname::text, pg_get_triggerdef(pg_trigger.oid, true)
        FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid WHERE relnamespace = spaces.oid AND NOT tgisinternal
) objects
WHERE spaces.nspname = $1
ORDER BY kind, name
