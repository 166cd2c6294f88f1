"""The commands for single ISO files: they need no configuration and no network."""
