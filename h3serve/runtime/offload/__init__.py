"""Weights that move between files, host memory and the device."""
