"""Measurements that anyone can run: this service beside nginx, and beside any other server."""
