"""A clip to MP4 and back, as a player would see it."""

from pathlib import Path

import av
import numpy as np


def encode(path: Path, clip: np.ndarray, sound: np.ndarray | None, rate: int = 32_000) -> None:
    """H.264 at CRF 18 and AAC at 128 kbit/s."""
    with av.open(str(path), "w") as out:
        video = out.add_stream("libx264", rate=24, options={"crf": "18"})
        video.height, video.width = clip.shape[1:3]
        video.pix_fmt = "yuv420p"
        audio = None
        if sound is not None:
            audio = out.add_stream("aac", rate=rate, layout="stereo", bit_rate=128_000)
        for picture in clip:
            out.mux(video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(video.encode(None))
        if audio is not None and sound is not None:
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(sound), format="fltp", layout="stereo")
            frame.sample_rate = rate
            out.mux(audio.encode(frame))
            out.mux(audio.encode(None))


def decode_frames(path: Path) -> np.ndarray:
    with av.open(str(path)) as container:
        return np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])
