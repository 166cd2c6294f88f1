"""Authentication by JWT, and the tenant of a request."""
