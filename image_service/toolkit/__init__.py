"""The imaging toolkit: disk images inspected, validated, converted, customized and transferred.

A leaf without Twisted: it imports formats, coreos and command_line alone, and runs in a process of its own.
Bytes of unknown origin are inspected here before any program sees them.
"""
