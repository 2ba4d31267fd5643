"""Constellations that are kept in a store, on the command line: run, left, resumed, looked at and edited."""
