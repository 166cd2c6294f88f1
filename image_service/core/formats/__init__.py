"""Binary formats: newc, initrds, OpenPGP; disk images in `disk`, file systems in `filesystems`."""
