"""Reference sounds of recorded requests: the file on disk becomes the very wave that was encoded."""

import json
from pathlib import Path

import numpy as np

from h3serve.media.read.audio import load_audio
from h3serve.media.sources.media_file import MediaFile


def test_reference_sounds(oracle: Path) -> None:
    seen = 0
    for name, case in json.loads((oracle / "index.json").read_text())["cases"].items():
        arrays = np.load(oracle / case["file"])
        references = [c for c in case["request"]["conditions"] if c["role"] == "reference"]
        for number, condition in enumerate(references):
            key = f"prepared_ref{number}_wave"
            if key not in arrays.files:
                continue
            given, rate = arrays[f"input_ref{number}_wave"], int(arrays[f"input_ref{number}_rate"])
            seconds = min(given.shape[1] / rate, case["frames"] / 24)
            file = MediaFile(oracle / condition["uri"])
            wave = load_audio(file, seconds, soundtrack=condition["type"] != "audio")
            np.testing.assert_allclose(wave, arrays[key], atol=1e-6, rtol=0, err_msg=name)
            seen += 1
    assert seen >= 4
