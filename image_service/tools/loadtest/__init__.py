"""The load test: clients that read images as machines do, verify the bytes, and measure the server."""
