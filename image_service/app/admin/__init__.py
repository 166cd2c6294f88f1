"""Administration of a service that serves images: its state, of one process, and the listener."""
