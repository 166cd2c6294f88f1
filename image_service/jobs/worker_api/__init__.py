"""osbuild-composer's worker API, version 1."""
