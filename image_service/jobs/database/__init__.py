"""Rows about composes, jobs, workers and images, in SQLite or PostgreSQL."""
