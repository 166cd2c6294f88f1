"""The load test: clients that read images as machines do, verify what they read, and measure it."""
