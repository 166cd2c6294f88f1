"""What an operator sees: the log."""
