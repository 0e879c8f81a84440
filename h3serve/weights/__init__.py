"""From files to modules."""
