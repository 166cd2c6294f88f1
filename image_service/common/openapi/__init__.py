"""OpenAPI: bodies of requests and replies as classes, and the document of an API."""
