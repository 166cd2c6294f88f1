"""The block cache: on local disk, the blocks of files that stay at their origin."""
