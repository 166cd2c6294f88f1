"""An object store: a directory, or S3."""
