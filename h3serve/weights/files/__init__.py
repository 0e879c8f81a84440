"""Checkpoint folders and safetensors files: names, shapes, bytes."""
