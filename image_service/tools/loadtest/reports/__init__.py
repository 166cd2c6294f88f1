"""The results of a load test: as a value, as JSON, for a terminal, and as an HTML page."""
