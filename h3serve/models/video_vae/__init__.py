"""Video pixels to latents and back."""
