"""Files: open files read at an offset, the page cache, disk quota, atomic publication."""
