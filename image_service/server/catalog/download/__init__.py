"""Downloads of base images over HTTP, resumable."""
