-- What a device had last, in the order of lists. A run changes its device only together with its session, which has an
-- index, too.
CREATE INDEX runs_by_device ON runs (device, id) WHERE device IS NOT NULL;
