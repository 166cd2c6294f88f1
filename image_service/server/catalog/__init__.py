"""Base images: where they come from, what they are, and whether they can be served."""
