"""What is on a disk."""
