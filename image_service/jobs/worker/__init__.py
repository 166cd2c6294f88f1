"""``image-service worker``: takes jobs from the worker API and runs image-toolkit for them."""
