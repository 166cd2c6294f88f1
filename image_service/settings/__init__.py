"""The configuration: environment variables, parsed and validated into settings."""
