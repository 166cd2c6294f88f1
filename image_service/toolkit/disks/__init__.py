"""Disk images as files: detected, checked and opened; digests, sparse copies."""
