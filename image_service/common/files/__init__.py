"""Files: base images as readable files, the page cache, disk quota, atomic publication."""
