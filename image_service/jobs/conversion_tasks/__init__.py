"""The tasks of EC2's API: requests to import and export become composes, and composes become replies."""
