"""The requests of a load test and their measurements."""
