"""DATA_DIR: its files, their manifest and their digests."""
