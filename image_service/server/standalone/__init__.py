"""The embedded stand-in for assisted-service."""
