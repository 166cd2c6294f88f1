"""HTTP semantics (pure) and the connection that speaks them."""
