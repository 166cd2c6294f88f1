"""Metrics of the jobs role, with osbuild-composer's names."""
