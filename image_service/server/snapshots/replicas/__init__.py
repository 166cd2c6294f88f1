"""Coordination of the replicas of a service, which share a PostgreSQL database."""
