"""The imaging toolkit: disk images inspected, validated, converted, customized and transferred.

It imports core and common alone, no Twisted, and runs in a process of its own.
Bytes of unknown origin are inspected here before any program sees them.
"""
