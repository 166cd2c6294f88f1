"""Several processes that serve as one: the supervisor, the serving processes, and their shared state."""
