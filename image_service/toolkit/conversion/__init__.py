"""Disk images in other formats."""
