"""Adapters on a live transformer: what they add to its layers, which are there, where their files are."""
