"""Snapshots at rest: rows, encryption, encoding."""
