"""Series: one active item, and a queue of items that wait for their turn.

machine.py is the state machine: each operation takes a state and returns the next one, or the same object if nothing
changes. It also has the strict JSON forms of a state: an unreadable state counts as taken, never as free.

The room ``asterism.series`` keeps states in registers (stores, Git, GitHub) and changes them by compare-and-swap.
To add an operation: a method of ``Series`` that returns ``self`` if it changes nothing. To add a field: the
class, the keys of the written forms, and a default for states without it.
"""
