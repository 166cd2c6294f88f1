"""Parts of all console scripts: argument parsing, signals, completion, manual pages, a progress bar."""
