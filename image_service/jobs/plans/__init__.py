"""Plans: the steps that make the image of a request. Pure."""
