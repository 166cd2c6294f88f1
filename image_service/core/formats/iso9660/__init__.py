"""ISO 9660 (ECMA-119) with Rock Ridge and Joliet: its structures as they are stored, and where files lie."""
