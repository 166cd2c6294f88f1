"""``image-service infra-env``: registers infra-envs at a service in standalone mode."""
