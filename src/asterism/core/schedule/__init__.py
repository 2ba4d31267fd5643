"""Schedules: at which times runs or plans are created, and what happens if a time is missed or work overlaps.

- schedule.py: the record ``Schedule``: its definition, its state, and its JSON form; the names of events that it means.
- ticks.py: which ticks are due, which were missed, whether an overlapping tick is created; the entries of the history;
  what became of each tick (``Calendar``); which of them are made up for (``Backfill``).
- tick_values.py: what a plan learns of its tick, in the time zone of the schedule.

A *tick* is a time at which a schedule creates something, in whole seconds since 1970. The functions here know neither
cron nor time zones: they get ``next_tick``, a function from a time to the first tick after it.

Invariants: the cursor ``after`` of a schedule moves past a tick when the tick is decided, and back only when the clock
was set back; each decision names one tick at most; a tick fires before the tick after it.

To add a field: schedule.py, with a default, so that older records can be read. To add a catch-up or overlap policy: its
name in schedule.py, its rule in ticks.py.
"""
