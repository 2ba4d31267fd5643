"""What is true: the plan, its edits and the lock.

Nothing in this room reads a clock, draws a random number or does I/O. Time enters as the argument ``now``, effects
leave as return values. That is why the same functions serve the live system, the simulator and the property tests.
"""
