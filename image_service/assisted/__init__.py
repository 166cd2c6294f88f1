"""assisted-service as this service sees it: its client and what it answers."""
