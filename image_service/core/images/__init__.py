"""What one URL serves: the extents of a base image, composed with a customization. Imports no Twisted."""
