"""What a process keeps of snapshots, and how it is validated."""
