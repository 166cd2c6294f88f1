"""Boots machines from a URL by their BMCs' Redfish services."""
