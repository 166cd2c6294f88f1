"""The serving processes of WORKERS, as their supervisor and they themselves see them."""
