"""DATA_DIR: which files are stored there, and what is known about them."""
