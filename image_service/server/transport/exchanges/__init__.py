"""The record and the log of one request and its response."""
