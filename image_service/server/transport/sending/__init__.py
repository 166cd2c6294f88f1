"""Senders: extents to a socket, plain and TLS."""
