"""Configurations of boot loaders: which entry boots by default, and what it says."""
