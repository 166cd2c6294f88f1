"""A toolkit for APIs on listeners of their own, over twisted.web."""
