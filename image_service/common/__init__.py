"""What knows no product: files, database, objects, HTTP, programs, concurrency, command line."""
