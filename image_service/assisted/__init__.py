"""assisted-service as this service sees it: the treq client and what it answers."""
