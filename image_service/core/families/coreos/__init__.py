"""CoreOS live media: layout, embed areas, kernel arguments, minimal ISOs, stream metadata; no Twisted."""
