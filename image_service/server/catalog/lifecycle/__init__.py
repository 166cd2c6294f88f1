"""The life of one base image: fetched, verified, opened, ready."""
