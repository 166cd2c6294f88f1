"""What is known and logged of one request and its response."""
