"""File systems: read-only, without a mount. Pure."""
