"""OCI registries: references, manifests, credentials and mirrors, pure; and a client that reads."""
