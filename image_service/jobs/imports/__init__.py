"""Imports of disk images, before and after the job of a worker: manifests are pinned, uploads deleted."""
