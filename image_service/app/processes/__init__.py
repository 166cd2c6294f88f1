"""Several processes that serve as one: the supervisor, and what it starts."""
