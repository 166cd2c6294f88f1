"""How the rooms become one service: its parts, in the order in which they start and end."""
