"""The pure core: bytes and integers in, frozen values out."""
