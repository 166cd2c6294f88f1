"""``--profile ztp-3500``: a fleet that installs itself, and all that happens meanwhile."""
