"""The jobs role: builds it from settings, starts and stops it."""
