"""Jobs: their states, store, files and retention."""
