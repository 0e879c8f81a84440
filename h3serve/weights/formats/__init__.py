"""Stored tensors to the modules that take them, and whether they are the right ones."""
