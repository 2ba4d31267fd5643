"""The everyday jobs of a team in its first week: a story for each, by the commands that the documentation shows."""
