"""Snapshots: what is known of each, and how they are stored: rows, encryption, encoding."""
