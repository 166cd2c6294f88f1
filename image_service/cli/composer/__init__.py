"""``image-service compose``: a client of the composer's API."""
