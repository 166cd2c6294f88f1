"""Customized CoreOS boot images, streamed and never stored."""

__version__ = "0.1.0"
