"""Provenance: a signed statement of which bytes of an image are its base's, and which are not."""
