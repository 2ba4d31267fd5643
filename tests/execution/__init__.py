"""Tests of how work is executed."""
