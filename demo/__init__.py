"""A small world of things that move and sound, and the checkpoint that was trained on it."""
