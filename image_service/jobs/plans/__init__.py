"""Plans: what steps make an image of a request. Pure."""
