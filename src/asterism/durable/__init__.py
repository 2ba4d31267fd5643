"""Constellations that outlive every process: their steps are kept in a store, and their tasks are runs of a fleet."""
