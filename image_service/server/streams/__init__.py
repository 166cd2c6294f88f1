"""CoreOS streams: their metadata, their releases as base images, and the mirror."""
