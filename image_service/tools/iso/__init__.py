"""Single ISO files: open, describe, customize, read and write them, without a service and without Twisted."""
