"""Worker processes: their life, their messages and what they run."""
