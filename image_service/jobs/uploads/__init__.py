"""Uploads of disk images that clients import: their manifests are checked and pinned, their parts deleted."""
