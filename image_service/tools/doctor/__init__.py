"""Checks of any image URL: could a machine boot from it, and if not, why. A leaf without Twisted."""
