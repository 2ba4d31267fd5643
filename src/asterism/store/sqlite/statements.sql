-- Every statement on the records, by name. Names in braces stand for columns, in the order of row_codec.

-- name: insert_run
INSERT INTO runs ({run_columns}, urgency) VALUES ({run_places}, ?);

-- name: update_run
-- The compare-and-swap: it changes nothing if another writer was faster.
UPDATE runs SET {run_changes} WHERE id = ? AND revision = ?;

-- name: run_exists
SELECT 1 FROM runs WHERE id = ?;

-- name: insert_session
INSERT INTO sessions (id, device, revision, state, draining, beat_at, profile, terms) VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: update_session
-- Only heartbeats write beat_at, but a time in the future was written before the clock was set back.
UPDATE sessions SET device = ?, revision = ?, state = ?, draining = ?, beat_at = min(beat_at, ?), profile = ?, terms = ?
WHERE id = ? AND revision = ?;

-- name: update_session_abroad
-- A session abroad has no heartbeats here: each write counts as one.
UPDATE sessions SET device = ?, revision = ?, state = ?, draining = ?, beat_at = ?, profile = ?, terms = ?
WHERE id = ? AND revision = ?;

-- name: set_priority
UPDATE runs SET priority = ?, urgency = ? WHERE id = ?;

-- name: mark_copy
-- After the write of the run, whose trigger has put it at the end of the feed as one of our own.
UPDATE feed SET left_to = ?, same = ?, open = ? WHERE run = ?;

-- name: contribute
INSERT INTO contributions (run, store, runs, bytes, blobs) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (run, store) DO UPDATE SET
    runs = max(runs, excluded.runs), bytes = bytes + excluded.bytes, blobs = blobs + excluded.blobs;

-- name: usage
SELECT coalesce(sum(runs), 0), coalesce(sum(bytes), 0), coalesce(sum(blobs), 0) FROM contributions WHERE store = ?;

-- name: came_from_peers
SELECT DISTINCT run FROM contributions WHERE run IN (SELECT value FROM json_each(?));

-- name: came_from
SELECT {owned_columns} FROM contributions CROSS JOIN runs ON runs.id = contributions.run
WHERE contributions.store = ? AND contributions.runs = 1 AND runs.ended_at IS NULL
ORDER BY runs.id;

-- name: see_end
INSERT INTO ends (run, ended_at, seen_at) VALUES (?, ?, ?)
ON CONFLICT (run) DO UPDATE SET
    seen_at = CASE WHEN ended_at = excluded.ended_at THEN seen_at ELSE excluded.seen_at END,
    ended_at = excluded.ended_at;

-- name: expect_session
SELECT 1 FROM sessions WHERE id = ? AND revision = ?;

-- name: expect_register
SELECT 1 FROM registers WHERE key = ? AND revision = ?;

-- name: insert_register
INSERT INTO registers (key, value, revision) VALUES (?, ?, 1);

-- name: update_register
UPDATE registers SET value = ?, revision = revision + 1 WHERE key = ? AND revision = ?;

-- name: delete_register
DELETE FROM registers WHERE key = ? AND revision = ?;

-- name: expect_no_register
SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM registers WHERE key = ?);

-- name: list_plan
INSERT INTO plans (name, created_at, state, owner, cancelling, file, tags) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET
    state = excluded.state, owner = excluded.owner, cancelling = excluded.cancelling, file = excluded.file,
    tags = excluded.tags, summary = NULL;

-- name: unlist_plan
DELETE FROM plans WHERE name = ?;

-- name: put_plan
UPDATE plans SET state = ?, summary = ? WHERE name = ?;

-- name: insert_notice
INSERT INTO notices (at, run, said) VALUES (?, ?, ?);

-- name: heartbeat
UPDATE sessions SET revision = revision + 1, beat_at = ?, profile = ? WHERE id = ? AND state = 'open';

-- name: draining
SELECT draining FROM sessions WHERE id = ?;

-- name: held
SELECT id, epoch, status, stop_request FROM runs WHERE session = ? ORDER BY id;

-- name: put_report
INSERT INTO reports (run, epoch, said) VALUES (?, ?, ?)
ON CONFLICT (run) DO UPDATE SET epoch = excluded.epoch, said = excluded.said;

-- name: offers_end
-- The last of the next :look offers. A page is short, since no other process can write meanwhile.
SELECT urgency, created_at, id FROM runs
WHERE offered = 1 AND (urgency, created_at, id) > (:urgency, :created_at, :id)
ORDER BY urgency, created_at, id
LIMIT 1 OFFSET :look;

-- name: any_offered
SELECT 1 FROM runs WHERE offered = 1 LIMIT 1;

-- name: offers
-- The offers between two places that a device may take. :not_kinds is a JSON list.
SELECT {run_columns} FROM runs
WHERE offered = 1
  AND (urgency, created_at, id) > (:urgency, :created_at, :id)
  AND (urgency, created_at, id) <= (:last_urgency, :last_created_at, :last_id)
  AND urgency < :below
  AND not_before <= :now
  AND (pinned IS NULL OR pinned = :device)
  AND instr(avoid, :avoided) = 0
  AND workflow || '@' || digest NOT IN (SELECT value FROM json_each(:not_kinds))
ORDER BY urgency, created_at, id
LIMIT :page;

-- name: forget_runs
-- The runs of a plan stay while its head, a register, does not say when it ended.
DELETE FROM runs WHERE id IN (
    SELECT id FROM runs
    WHERE ended_at < ?1
        AND NOT (substr(runs.key, 1, 5) = 'plan:' AND EXISTS (
            SELECT 1 FROM registers
            WHERE registers.key = 'plan/' || substr(runs.key, 6, instr(runs.key || '/', '/') - 6)
                AND coalesce(json_type(registers.value, '$.ended_at'), '') NOT IN ('integer', 'real')
        ))
        AND NOT EXISTS (
            SELECT 1 FROM ends WHERE ends.run = runs.id AND ends.ended_at = runs.ended_at AND ends.seen_at >= ?1
        )
    ORDER BY ended_at LIMIT ?2
);

-- name: forget_runs_of
-- The same for the runs whose key has a prefix, by the index of the keys.
DELETE FROM runs WHERE id IN (
    SELECT id FROM runs
    WHERE key >= ?3 AND key < ?3 || char(1114111) AND +ended_at < ?1
        AND NOT (substr(runs.key, 1, 5) = 'plan:' AND EXISTS (
            SELECT 1 FROM registers
            WHERE registers.key = 'plan/' || substr(runs.key, 6, instr(runs.key || '/', '/') - 6)
                AND coalesce(json_type(registers.value, '$.ended_at'), '') NOT IN ('integer', 'real')
        ))
        AND NOT EXISTS (
            SELECT 1 FROM ends WHERE ends.run = runs.id AND ends.ended_at = runs.ended_at AND ends.seen_at >= ?1
        )
    LIMIT ?2
);

-- name: forget_seen_runs
-- Runs that ended at a peer whose clock was ahead. The third argument is a prefix of their keys; empty for any.
DELETE FROM runs WHERE id IN (
    SELECT runs.id FROM ends CROSS JOIN runs ON runs.id = ends.run AND runs.ended_at = ends.ended_at
    WHERE ends.seen_at < ?1 AND (?3 = '' OR substr(runs.key, 1, length(?3)) = ?3)
        AND NOT (substr(runs.key, 1, 5) = 'plan:' AND EXISTS (
            SELECT 1 FROM registers
            WHERE registers.key = 'plan/' || substr(runs.key, 6, instr(runs.key || '/', '/') - 6)
                AND coalesce(json_type(registers.value, '$.ended_at'), '') NOT IN ('integer', 'real')
        ))
    ORDER BY ends.seen_at LIMIT ?2
);

-- name: forget_ends
DELETE FROM ends WHERE NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = ends.run);

-- name: forget_sessions
DELETE FROM sessions
WHERE state = 'ended' AND beat_at < ? AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.session = sessions.id);

-- name: forget_these_sessions
DELETE FROM sessions
WHERE id IN (SELECT value FROM json_each(?))
    AND state = 'ended' AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.session = sessions.id);

-- name: forget_notices
DELETE FROM notices WHERE at < ?;

-- name: forget_reports
DELETE FROM reports
WHERE NOT EXISTS (
    SELECT 1 FROM runs WHERE runs.id = reports.run AND runs.epoch = reports.epoch AND runs.session IS NOT NULL
);

-- name: put_log
-- Writes nothing if the run does not exist.
INSERT INTO logs (run, epoch, first, lines, said)
SELECT ?1, ?2, ?3, ?4, ?5 WHERE EXISTS (SELECT 1 FROM runs WHERE id = ?1)
ON CONFLICT (run, epoch, first) DO UPDATE SET lines = excluded.lines, said = excluded.said;

-- name: drop_log
DELETE FROM logs WHERE run = ? AND epoch = ? AND first >= ? AND first < ?;

-- name: log
SELECT epoch, first, lines, said FROM logs
WHERE run = ?1 AND (epoch > ?2 OR (epoch = ?2 AND first + lines - 1 > ?3))
ORDER BY epoch, first;

-- name: all_logs
SELECT run, epoch, first, lines, said FROM logs ORDER BY run, epoch, first;

-- name: logs_with_blobs
SELECT said FROM logs WHERE instr(said, '"$blob"') = 2;

-- name: logs_without_runs
SELECT DISTINCT run FROM logs WHERE NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = logs.run) ORDER BY run;

-- name: run
SELECT {run_columns} FROM runs WHERE id = ?;

-- name: orphans
-- CROSS JOIN makes SQLite go through the sessions one by one, so that a limit ends the search early.
SELECT {owned_columns}, {session_columns} FROM sessions CROSS JOIN runs ON runs.session = sessions.id
WHERE (
        sessions.state = 'ended'
        OR (
            sessions.state <> 'abroad' AND runs.status <> 'assigned'
            AND sessions.beat_at + CASE
                WHEN instr(sessions.device, '@') OR NOT json_valid(sessions.terms) THEN runs.timeout
                ELSE min(runs.timeout, coalesce(nullif(json_extract(sessions.terms, '$.timeout'), 90.0), runs.timeout))
            END < ?
        )
    )
    AND NOT EXISTS (SELECT 1 FROM feed WHERE feed.run = runs.id AND feed.left_to IS NOT NULL)
ORDER BY sessions.rowid, runs.id
LIMIT ?;

-- name: waiting
-- Each part has a partial index with its very condition.
SELECT workflow, work, pinned, count(*), min(coalesce(waiting_since, 0.0))
FROM (
    SELECT workflow, digest, work, pinned, waiting_since FROM runs WHERE offered = 1
    UNION ALL
    SELECT workflow, digest, work, pinned, waiting_since FROM runs WHERE offered = 2
)
GROUP BY workflow, digest, pinned
ORDER BY workflow, digest, pinned;

-- name: limited
-- Runs that wait for limits, and runs that hold some: of the others, which are paused or wait for their series, none.
SELECT uses, workflow, batch, priority, offered = 2, count(*), min(id) FROM runs
WHERE uses IS NOT NULL AND ended_at IS NULL AND (offered = 2 OR session IS NOT NULL)
GROUP BY uses, workflow, batch, priority, offered = 2
ORDER BY uses, workflow, batch, priority, offered = 2;

-- name: limited_runs
-- SQLite would take the index of the workflow, and look at all of its runs that have ended.
SELECT {run_columns} FROM runs INDEXED BY runs_limited
WHERE uses = :uses AND ended_at IS NULL AND workflow = :workflow AND batch IS :batch AND priority = :priority
    AND CASE WHEN :waiting THEN offered = 2 ELSE session IS NOT NULL END
    AND id > :after
ORDER BY id
LIMIT :limit;

-- name: counts
SELECT status, count(*) FROM runs GROUP BY status;

-- name: batches
-- The batches with names between the arguments. Of a run that did not fail only the index is read. In the JSON of one
-- that failed, these words stand nowhere else: a quote inside a text is escaped.
SELECT
    batch, status, status = 'failed' AND instr(state, '"cancelled":true') > 0 AS cancelled,
    count(*), min(created_at), max(ended_at)
FROM runs
WHERE batch >= ?1 AND batch <= ?2
    AND id NOT IN (SELECT substr(key, 7) FROM runs WHERE key > 'retry/' AND key < 'retry0')
GROUP BY batch, status, cancelled
ORDER BY batch, status, cancelled;

-- name: last_ends
SELECT ended_at FROM runs WHERE batch = ? AND ended_at IS NOT NULL ORDER BY ended_at DESC LIMIT ?;

-- name: sessions
SELECT {session_columns}, (SELECT count(*) FROM runs WHERE runs.session = sessions.id) FROM sessions
WHERE (? OR state <> 'ended') AND (? IS NULL OR device = ?)
ORDER BY rowid;

-- name: register
SELECT key, value, revision FROM registers WHERE key = ?;

-- name: registers
-- Keys with a prefix: from the prefix up to the prefix followed by the highest character.
SELECT key, value, revision FROM registers WHERE key >= ? AND key < ? || char(1114111) ORDER BY key LIMIT ?;

-- name: plans
-- The state as people see it is worked out here, so that a page reads no more rows than it has to.
SELECT
    name, created_at, summary,
    (SELECT value FROM registers WHERE key = 'budget/' || name)
FROM plans
WHERE {plan_names}(created_at, name) < (:before, :before_name) AND created_at >= :since
    AND (:name IS NULL OR lower(name) LIKE :name ESCAPE '\')
    AND (:file IS NULL OR file = :file)
    AND (:tag IS NULL OR EXISTS (SELECT 1 FROM json_each(tags) WHERE value = :tag))
    AND (:states IS NULL OR CASE
        WHEN state IN ('completed', 'failed', 'partially_failed', 'cancelled') THEN state
        WHEN cancelling THEN 'cancelling'
        WHEN state = 'executing' AND coalesce(owner, '') NOT IN (SELECT value FROM json_each(:live)) THEN 'at_rest'
        ELSE state
    END IN (SELECT value FROM json_each(:states)))
ORDER BY {plan_order}
LIMIT :limit;

-- name: reports
SELECT run, reports.epoch, said FROM reports JOIN runs ON runs.id = reports.run
WHERE run IN (SELECT value FROM json_each(?)) AND runs.epoch = reports.epoch AND runs.session IS NOT NULL;

-- name: notices
SELECT number, said FROM notices WHERE number > ? AND (? IS NULL OR run = ?) ORDER BY number LIMIT ?;

-- name: all_runs
SELECT {run_columns} FROM runs ORDER BY id;

-- name: all_runs_with_urgency
SELECT {run_columns}, urgency FROM runs ORDER BY id;

-- name: all_sessions
SELECT {session_columns} FROM sessions ORDER BY rowid;

-- name: all_registers
SELECT key, value, revision FROM registers ORDER BY key;

-- name: all_notices
SELECT said, number FROM notices ORDER BY number;

-- name: runs_with_blobs
-- A superset: the words may also stand in a text, so the caller looks at each run again.
SELECT {run_columns} FROM runs WHERE instr(input, '"$blob"') OR instr(state, '"$blob"');

-- name: all_reports
SELECT run, epoch, said FROM reports ORDER BY run;

-- name: feed_of_new
CREATE TRIGGER IF NOT EXISTS feed_of_new AFTER INSERT ON runs BEGIN
    INSERT INTO feed (run) VALUES (new.id);
END;

-- name: feed_of_changed
CREATE TRIGGER IF NOT EXISTS feed_of_changed AFTER UPDATE ON runs BEGIN
    DELETE FROM feed WHERE run = new.id;
    INSERT INTO feed (run) VALUES (new.id);
END;

-- name: feed_of_forgotten
CREATE TRIGGER IF NOT EXISTS feed_of_forgotten AFTER DELETE ON runs BEGIN
    DELETE FROM feed WHERE run = old.id;
END;

-- name: feed_everything
INSERT INTO feed (run) SELECT id FROM runs WHERE NOT EXISTS (SELECT 1 FROM feed WHERE feed.run = runs.id) ORDER BY id;

-- name: name_feed
INSERT INTO registers (key, value, revision) VALUES (?, ?, 1) ON CONFLICT (key) DO NOTHING;

-- name: changes
SELECT feed.number, feed.left_to, feed.same, {owned_columns} FROM feed CROSS JOIN runs ON runs.id = feed.run
WHERE feed.number > ?
ORDER BY feed.number
LIMIT ?;

-- name: newest_change
SELECT seq FROM sqlite_sequence WHERE name = 'feed';

-- name: left_to
SELECT run, left_to FROM feed WHERE left_to IS NOT NULL AND run IN (SELECT value FROM json_each(?));

-- name: copies
SELECT {owned_columns} FROM feed CROSS JOIN runs ON runs.id = feed.run
WHERE feed.open = 1 AND feed.left_to = ? AND feed.run > ?
ORDER BY feed.run
LIMIT ?;

-- name: judges
SELECT DISTINCT left_to FROM feed WHERE open = 1;

-- name: open_copies
SELECT run, left_to FROM feed WHERE open = 1;

-- name: all_copies
SELECT run FROM feed WHERE left_to IS NOT NULL;
