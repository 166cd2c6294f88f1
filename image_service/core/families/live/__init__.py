"""Families of live ISOs other than CoreOS: one module each."""
