"""Describes the content of a disk."""
