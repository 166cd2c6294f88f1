"""Containers of disk images, and partition tables. Pure."""
