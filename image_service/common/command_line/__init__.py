"""What the console scripts share: argument parsing, signals, completion, manual pages, a progress bar."""
