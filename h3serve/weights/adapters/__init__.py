"""Adapter files (LoRA and its relatives) of every dialect, to one form."""
