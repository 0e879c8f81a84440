"""The networks, written for one device; their sizes and key maps as data."""
