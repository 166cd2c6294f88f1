"""What an operator sees: the log and the metrics."""
