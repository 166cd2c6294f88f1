"""The application: builds the service from settings, starts and stops it."""
