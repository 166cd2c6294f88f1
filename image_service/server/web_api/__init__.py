"""A toolkit for APIs on second listeners, over twisted.web: JSON, authentication, problem details, limits."""
