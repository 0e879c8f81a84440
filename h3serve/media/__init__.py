"""Bytes to arrays and back; never imports torch."""
