"""Hands jobs to workers: queues, permits of tenants, tokens of attempts."""
