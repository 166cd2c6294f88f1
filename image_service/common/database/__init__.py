"""The database engine below the repositories."""
