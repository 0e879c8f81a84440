"""The two demo checkpoints: trained, and random for tests."""
