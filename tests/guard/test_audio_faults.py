import numpy as np
import pytest

from h3serve.guard.audio_faults import check_audio, check_container, clipped_share
from h3serve.guard.thresholds import AudioLimits
from tests.guard.conftest import SOUND_RATE, failed
from tests.guard.encode import encode

LIMITS = AudioLimits()


def check(sound, seconds=2.0):
    return failed(check_audio(sound, SOUND_RATE, seconds, limits=LIMITS))


def test_good_sound_passes(sound):
    assert not check(sound)


@pytest.mark.parametrize("gain", [0, 1e-4])
def test_silence_never_passes(sound, gain):
    assert check(sound * np.float32(gain)) == {"level"}


def test_not_a_number_fails(sound):
    broken = sound.copy()
    broken[0, 5] = np.nan
    assert check(broken) == {"level", "clipped share"}


def test_clipping_fails(sound):
    assert check(np.clip(sound * 8, -1, 1)) == {"clipped share"}


def test_single_peaks_are_not_clipping():
    peaks = np.zeros((1, 100), np.float32)
    peaks[0, ::2] = 1
    assert clipped_share(peaks) == 0
    peaks[0, :4] = -1
    assert clipped_share(peaks) == pytest.approx(0.05)  # the fifth sample is a peak beside them


@pytest.mark.parametrize("seconds", [1.7, 2.3])
def test_drift_fails_either_way(sound, seconds):
    assert check(sound, seconds) == {"audio/video drift"}


def test_container_with_sound_passes(clip, sound, tmp_path):
    encode(tmp_path / "a.mp4", clip, sound)
    assert not failed(check_container(tmp_path / "a.mp4", limits=LIMITS))


def test_container_without_sound_fails(clip, tmp_path):
    encode(tmp_path / "a.mp4", clip, None)
    assert failed(check_container(tmp_path / "a.mp4", limits=LIMITS)) == {"audio streams"}


def test_container_with_short_sound_fails_on_drift(clip, sound, tmp_path):
    encode(tmp_path / "a.mp4", clip, sound[:, :32_000])
    assert failed(check_container(tmp_path / "a.mp4", limits=LIMITS)) == {"container drift"}


def test_no_container_fails(tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"nothing of the kind")
    assert failed(check_container(tmp_path / "a.mp4", limits=LIMITS)) == {"audio streams"}
