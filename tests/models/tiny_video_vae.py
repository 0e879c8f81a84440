"""A small video VAE with the release's ratios, chunks and head size."""

from h3serve.models.video_vae.video_vae import VideoVAE
from h3serve.models.video_vae.video_vae_config import VideoVAEConfig
from tests.keymaps import fill

CONFIG = VideoVAEConfig(
    channels=(8, 8, 8, 16, 16, 16),
    space_down=(2, 2, 2, 2, 1, 1),
    time_down=(1, 2, 2, 1, 1, 1),
    decoder_layers=2,
    heads=2,
    head_dim=64,
    latents_mean=tuple(0.1 * i - 1 for i in range(24)),
    latents_std=tuple(0.5 + 0.1 * i for i in range(24)),
    norm_groups=4,
)


def tiny(seed: int = 1) -> VideoVAE:
    vae = VideoVAE(CONFIG)
    fill(vae, seed)
    return vae
