"""The client of assisted-service: the infra-env, its Ignition config and its ramdisk."""
