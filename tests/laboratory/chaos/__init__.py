"""Fleets of real processes, under fire."""
