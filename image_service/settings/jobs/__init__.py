"""Settings of ``image-service jobs``."""
