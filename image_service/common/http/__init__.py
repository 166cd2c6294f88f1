"""One blocking HTTP client, with its TLS, for threads."""
