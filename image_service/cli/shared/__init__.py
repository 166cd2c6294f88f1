"""Arguments, input and output that several commands share."""
