"""Which jsonschema looks for, and the jobs role does not need: it takes 20 MiB."""

raise ImportError("the extra jobs does not install it")
