"""Tools beside the server: doctor and load test."""
