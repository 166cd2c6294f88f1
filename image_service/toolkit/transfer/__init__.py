"""Disk images over the network: import manifests and their parts, image bundles, object stores."""
