-- The plans as lists show them. A plan is a register `plan/NAME`, its head: each write of a head writes its row here, too
-- (not by triggers: SQLite does not trust the JSON functions there). The columns are those by which lists are filtered. `summary` is JSON that the writer of the plan adds in the commit of each
-- step; null after a write of the head alone, until somebody reads the plan in full.

CREATE TABLE plans (
    name       TEXT PRIMARY KEY NOT NULL,
    created_at REAL NOT NULL,
    state      TEXT,
    owner      TEXT,
    cancelling INTEGER,
    file       TEXT,
    tags       TEXT NOT NULL,
    summary    TEXT
) WITHOUT ROWID;

CREATE INDEX plans_created ON plans (created_at, name);

INSERT INTO plans (name, created_at, state, owner, cancelling, file, tags)
SELECT
    substr(key, 6), coalesce(json_extract(value, '$.created_at'), 0.0), json_extract(value, '$.state'),
    json_extract(value, '$.owner'), json_extract(value, '$.cancelling'), json_extract(value, '$.file'),
    coalesce(json_extract(value, '$.tags'), '[]')
FROM registers WHERE key >= 'plan/' AND key < 'plan0';

-- The runs of one workflow, in the order of lists. A run keeps its workflow, so this costs one entry for each run.
CREATE INDEX runs_workflow ON runs (workflow, id);
