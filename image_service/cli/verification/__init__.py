"""``image-service verify``."""
