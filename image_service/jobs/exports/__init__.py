"""Exports of disk images to buckets of S3, which EC2's API starts."""
