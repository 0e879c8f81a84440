"""What a generation gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h3serve.core.plan import Plan
from h3serve.media.write.mp4_writer import mp4_writer
from h3serve.media.write.outputs import check_output, save_frames, save_npz, save_wav


@dataclass(frozen=True)
class GenerationResult:
    """A finished video: `video` uint8 [frames, height, width, 3] at 24 fps, `audio` float32 [2, samples] at 32 kHz.

    `stats` holds seconds and peak bytes per stage and the plan; `kept` the intermediates asked for; `record` what an
    MP4 says of how it was made.
    """

    plan: Plan
    video: NDArray[np.uint8]
    audio: NDArray[np.float32]
    stats: dict[str, Any]
    kept: dict[str, NDArray[Any]] = field(default_factory=dict)
    record: str | None = None

    def save(self, path: str | Path) -> Path:
        """Writes .mp4, .wav, .npz, or (path ending in /) a folder of PNG frames; whole or not at all.

        Raises RequestError for a path that cannot be used, OutputError when writing fails.
        """
        kind = check_output(path)
        if kind == "wav":
            save_wav(path, self.audio)
        elif kind == "npz":
            save_npz(path, {"video": self.video, "audio": self.audio, **self.kept})
        elif kind == "frames":
            save_frames(path, self.video, self.audio)
        else:
            frames, height, width, _ = self.video.shape
            with mp4_writer(path, width=width, height=height, num_frames=frames, record=self.record) as writer:
                writer.write_audio(self.audio)
                writer.write_frames(self.video)
        return Path(path)
