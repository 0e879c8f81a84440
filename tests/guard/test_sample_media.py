import hashlib

import av
import numpy as np
import pytest
from PIL import Image

from h3serve.core.errors import RequestError
from h3serve.guard.cases import SHIPPED, load_cases
from h3serve.guard.sample_media import SAMPLES, draw, picture, resolve, tones


def test_drawings_are_the_same_everywhere():
    """Their digests: a changed drawing changes every ground truth that starts from it."""
    digest = hashlib.sha256(picture(96, 64, 24).tobytes() + tones(200).tobytes())
    assert digest.hexdigest()[:16] == "4d1a3418a60f6289"


def test_files_hold_the_drawings_to_the_bit(tmp_path):
    assert np.array_equal(np.array(Image.open(draw("small-first.png", tmp_path))), picture(96, 64, 0))
    with av.open(str(draw("clip.mkv", tmp_path))) as clip:
        frames = [frame.to_ndarray(format="rgb24") for frame in clip.decode(video=0)]
        clip.seek(0)
        sound = np.concatenate([f.to_ndarray().reshape(-1, 2) for f in clip.decode(audio=0)])
    assert len(frames) == 48
    assert np.array_equal(frames[47], picture(256, 256, 47))
    assert np.array_equal(sound.T, tones(280))


def test_sound_is_neither_silent_nor_clipped():
    left, right = tones(200)
    assert 5000 < np.abs(left).max() < 32767
    assert 1000 < np.abs(right).max() < 32767


def test_shipped_cases_name_known_samples(tmp_path):
    used = set()
    for case in load_cases(SHIPPED):
        used |= {condition.uri.removeprefix("sample:") for condition in case.request.conditions}
    assert used == set(SAMPLES)


def test_resolved_request_has_paths(tmp_path):
    case = next(c for c in load_cases(["demo"]) if c.id == "demo-ref2va-image-audio")
    request = resolve(case.request, tmp_path)
    assert [c.uri for c in request.conditions] == [str(tmp_path / n) for n in ("small-first.png", "sound.wav")]
    assert all((tmp_path / name).exists() for name in ("small-first.png", "sound.wav"))


def test_unknown_sample_is_an_error(tmp_path):
    with pytest.raises(RequestError, match=r"sample:first\.png"):
        draw("nothing.png", tmp_path)
