"""Generic binary formats: ISO 9660, newc, squashfs, erofs; no Twisted, no CoreOS."""
