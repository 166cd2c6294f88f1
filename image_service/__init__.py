"""Customised CoreOS boot images, streamed and never stored."""
