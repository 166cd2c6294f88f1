"""Programs in a sandbox: without network and privileges, within limits, ended with all their children."""
