"""The log and the metrics."""
