"""The request handler: routes to boot images, further ranges, digests."""
