"""Commands on plans and plan files."""
