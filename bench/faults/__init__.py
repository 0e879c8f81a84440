"""Faults planted one at a time into the source, a YAML file per folder, and which tests notice them."""
