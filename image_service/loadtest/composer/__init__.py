"""The profile ``composer``: clients of the composer API of the jobs role."""
