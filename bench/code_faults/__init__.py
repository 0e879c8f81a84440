"""Faults planted one at a time into the package's source, and the tests that notice them."""
