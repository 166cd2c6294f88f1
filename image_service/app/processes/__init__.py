"""Several processes that serve as one: the supervisor, its workers, and their shared state."""
