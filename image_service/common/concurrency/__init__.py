"""Single flight, locks, retry with backoff, and coordination between processes."""
