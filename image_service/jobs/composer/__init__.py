"""osbuild-composer's public API, version 2."""
