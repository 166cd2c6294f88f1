"""Whether a disk fits a platform."""
