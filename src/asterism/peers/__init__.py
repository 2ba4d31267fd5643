"""Devices that share no store: each keeps its own, and they exchange what they know."""
