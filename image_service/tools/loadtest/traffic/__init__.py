"""The requests of a load test and what they measure."""
