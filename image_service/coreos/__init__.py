"""The formats of CoreOS live media: bytes and integers in, frozen values out; no Twisted."""
