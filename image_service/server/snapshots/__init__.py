"""Which version of an image a client gets: snapshots, versions, mounts, and their repository."""
