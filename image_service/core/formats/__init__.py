"""Generic binary formats: ISO 9660, newc, squashfs, erofs, OpenPGP; no Twisted, no CoreOS."""
