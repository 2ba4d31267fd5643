"""What the commands on a fleet share: how a store is opened, how records look as JSON and in a terminal, watching."""
