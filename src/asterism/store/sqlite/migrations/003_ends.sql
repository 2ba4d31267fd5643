-- When this store first saw the end of a run that ended elsewhere, by its own clock. What is forgotten is judged by that:
-- the clock that dated the end may have been wrong, or its owner may have lied. It counts for the end it names; if the
-- run ends otherwise after all, that is seen anew. A run that has no row here ended here.

CREATE TABLE ends (
    run      TEXT PRIMARY KEY NOT NULL,
    ended_at REAL NOT NULL,
    seen_at  REAL NOT NULL
) WITHOUT ROWID;

CREATE INDEX ends_seen ON ends (seen_at);
