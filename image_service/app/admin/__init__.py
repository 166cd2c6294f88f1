"""Administration of a service that serves images: its state, its base URL, and the listener."""
