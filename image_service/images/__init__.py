"""What one URL serves: extents over a base image, composed from a customization; no Twisted."""
