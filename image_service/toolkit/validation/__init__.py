"""Checks whether a disk fits a platform."""
