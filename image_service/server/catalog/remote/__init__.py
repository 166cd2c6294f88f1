"""Base images that stay at their origin: pinned, read by ranges, checked."""
