"""Temporal, which runs plans: the only package that imports temporalio."""
