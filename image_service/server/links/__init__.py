"""Short links: capability URLs that stand for images, with the credentials that read them."""
