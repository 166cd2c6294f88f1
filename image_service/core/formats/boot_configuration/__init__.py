"""Boot configurations of live images: found on a medium, and edited as text."""
