"""A stand-in for `Generator` that gives prepared clips, with its stats and its save."""

from types import SimpleNamespace

import numpy as np

from tests.guard.encode import encode

GIB = 2**30


class FakeEngine:
    """`generate` gives `outcomes` one after another, the last one for ever; an exception is raised."""

    def __init__(self, *outcomes, seconds=(10.0,), peak=8 * GIB):
        self.outcomes, self.seconds, self.peak, self.calls = list(outcomes), list(seconds), peak, 0
        self.requests = []

    def close(self):
        """Nothing is held."""

    def forget(self):
        """Nothing is remembered."""

    def generate(self, request, on_progress=None):
        self.calls += 1
        self.requests.append(request)
        outcome = self.outcomes[min(self.calls, len(self.outcomes)) - 1]
        if isinstance(outcome, Exception):
            raise outcome
        seconds = self.seconds[min(self.calls, len(self.seconds)) - 1]
        if on_progress:
            for step, steps in ((0, 0), (0, 2), (1, 2), (2, 2)):
                on_progress(SimpleNamespace(stage="denoise", step=step, steps=steps))
        video, audio = outcome
        return SimpleNamespace(
            video=video,
            audio=audio,
            stats={
                "seconds": {"denoise": seconds},
                "total_seconds": seconds,
                "peak_bytes": {"denoise": self.peak},
                "load_peak_bytes": 4 * GIB,
            },
            save=lambda path: encode(path, video, np.ascontiguousarray(audio)),
        )
