"""Limits on downloads and connections, and who is served first when they are reached."""
