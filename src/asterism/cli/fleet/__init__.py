"""Commands on a fleet, its notices and its peers."""
