-- Lists of runs by what few of many runs have, in the order of lists: what has not ended, what a device had last, and
-- the runs of one series.
CREATE INDEX runs_open ON runs (id) WHERE ended_at IS NULL;
CREATE INDEX runs_device ON runs (device, id) WHERE device IS NOT NULL;
CREATE INDEX runs_series ON runs (series, id) WHERE series IS NOT NULL;
