"""Boot progress: the bytes of each image that each client has read, and the stage of its boot. Pure."""
