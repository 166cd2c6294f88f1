"""TLS below connections: the certificate, the handshake, and sending on it."""
