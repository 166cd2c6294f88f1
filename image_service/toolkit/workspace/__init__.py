"""What one call may use: a private directory, limits, programs, progress."""
