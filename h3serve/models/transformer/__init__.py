"""The joint video and audio diffusion transformer."""
