-- The changes of the runs, numbered for peers (see store/protocol.py: Feeding). Nothing is in it until the first peer
-- asks: then triggers on `runs` are made that keep it, in a store without peers there are none. Numbers are never used
-- again, since a peer remembers how far it has come. `left_to` and `same` are the marks of copies; `open` is 1 for a
-- copy of a run that has not ended.

CREATE TABLE feed (
    number  INTEGER PRIMARY KEY AUTOINCREMENT,
    run     TEXT NOT NULL UNIQUE,
    left_to TEXT,
    same    INTEGER NOT NULL DEFAULT 0,
    open    INTEGER NOT NULL DEFAULT 0
);

-- What is left to a peer that may be gone.
CREATE INDEX feed_open ON feed (left_to) WHERE open = 1;
