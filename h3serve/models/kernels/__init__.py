"""Attention, linear layers and element-wise operations, plain and in Triton."""
