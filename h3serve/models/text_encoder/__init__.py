"""Tokens and pixels to the transformer's text rows."""
