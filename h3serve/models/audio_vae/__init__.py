"""Audio samples to latents and back."""
