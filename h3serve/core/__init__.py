"""Plain values that every room shares: no torch, no files, no network."""
