"""The race hunt: whole orchestrators in virtual time, with the order of everything permuted by a seed."""
