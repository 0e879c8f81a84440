import numpy as np
import pytest
from scipy import signal

from h3serve.guard.audio_metrics import best_lag, compare_audio, correlation, level_dbfs, spectrogram_db
from h3serve.guard.pcm import RATE, read_pcm, to_pcm, write_wav
from h3serve.guard.thresholds import AudioLimits
from tests.guard.conftest import SOUND_RATE, failed
from tests.guard.encode import encode


def check(truth, sound):
    pcm = to_pcm(truth, SOUND_RATE), to_pcm(sound, SOUND_RATE)
    return compare_audio(*pcm, limits=AudioLimits())


def test_identical_passes(sound):
    assert not failed(check(sound, sound))


def test_wrong_content_fails_on_content(sound):
    other = sound[:, ::-1]
    names = failed(check(sound, other))
    assert {"spectral similarity", "waveform correlation", "channel correlation"} <= names


def test_silence_fails(sound):
    names = failed(check(sound, np.zeros_like(sound)))
    assert {"spectral similarity", "waveform correlation", "RMS difference"} <= names


@pytest.mark.parametrize("channel", [0, 1])
def test_dropped_channel_fails_per_channel(sound, channel):
    dropped = sound.copy()
    dropped[channel] = 0
    figures = check(sound, dropped)
    names = {"channel correlation", "channel RMS difference", "balance difference"}
    assert names <= failed(figures)
    worst = next(figure for figure in figures if figure.name == "channel correlation")
    assert worst.where == ["left", "right"][channel]


def test_swapped_channels_fail_though_the_mix_is_the_same(sound):
    names = failed(check(sound, sound[::-1]))
    assert names == {"channel correlation", "channel RMS difference", "balance difference"}


def test_pitch_three_percent_up_fails_on_waveform(sound, sharp_sound):
    names = failed(check(sound, sharp_sound))
    assert "waveform correlation" in names
    assert not names & {"RMS difference", "duration difference", "balance difference"}


def test_delay_of_200_ms_fails_on_waveform(sound):
    late = np.pad(sound, ((0, 0), (6400, 0)))[:, :-6400]
    names = failed(check(sound, late))
    assert "waveform correlation" in names
    assert "duration difference" not in names


def test_delay_of_20_ms_passes(sound):
    late = np.pad(sound, ((0, 0), (640, 0)))[:, :-640]
    assert not failed(check(sound, late))


def test_one_channel_late_by_20_ms_fails_on_the_channel(sound):
    late = sound.copy()
    late[1] = np.pad(sound[1], (640, 0))[:-640]
    assert "channel correlation" in failed(check(sound, late))


def test_truncation_fails_on_duration_alone(sound):
    assert failed(check(sound, sound[:, :-16_000])) == {"duration difference"}


@pytest.mark.parametrize("gain_db", [3, -3])
def test_gain_of_3_db_fails_on_level_alone(sound, gain_db):
    names = failed(check(sound, sound * np.float32(10 ** (gain_db / 20))))
    assert names == {"RMS difference", "channel RMS difference"}


def test_reencoding_passes(sound, clip, tmp_path):
    encode(tmp_path / "clip.mp4", clip, sound)
    figures = compare_audio(to_pcm(sound, SOUND_RATE), read_pcm(tmp_path / "clip.mp4"), limits=AudioLimits())
    assert not failed(figures), [f.sentence for f in figures]


def test_mono_for_stereo_fails_on_channel_count(sound):
    assert "channel count difference" in failed(check(sound, sound[:1]))


def test_empty_sound_fails(sound):
    figures = compare_audio(to_pcm(sound, SOUND_RATE), np.zeros((2, 0), np.float32), limits=AudioLimits())
    assert failed(figures) == {"waveform correlation"}


def test_wav_keeps_the_sound(sound, tmp_path):
    pcm = to_pcm(sound, SOUND_RATE)
    assert pcm.shape == (2, sound.shape[1] * RATE // SOUND_RATE)
    write_wav(tmp_path / "sound.wav", pcm)
    assert np.abs(read_pcm(tmp_path / "sound.wav") - pcm).max() < 1 / 32768


def test_wav_keeps_the_level_and_full_scale(sound, tmp_path):
    pcm = np.clip(to_pcm(sound, SOUND_RATE) * 8, -1, 1)
    write_wav(tmp_path / "sound.wav", pcm)
    assert level_dbfs(read_pcm(tmp_path / "sound.wav")) == pytest.approx(level_dbfs(pcm), abs=5e-5)


def test_resampling_agrees_with_scipy(sound):
    ours, theirs = to_pcm(sound, SOUND_RATE), signal.resample_poly(sound, 1, 2, axis=1)
    assert correlation(ours[0], theirs[0].astype(np.float32)) > 0.999


@pytest.mark.parametrize("shift", [-700, -3, 0, 5, 799])
def test_lag_agrees_with_scipy(sound, shift):
    mono = to_pcm(sound, SOUND_RATE)[0]
    moved = np.roll(mono, shift)
    products = signal.correlate(moved, mono, method="fft")
    lags = signal.correlation_lags(len(moved), len(mono))
    assert best_lag(mono, moved) == shift == lags[products.argmax()]


def test_correlation_agrees_with_numpy(sound):
    a, b = sound - sound.mean(axis=1, keepdims=True)
    assert correlation(a, b) == pytest.approx(np.corrcoef(a, b)[0, 1], abs=1e-5)


def test_spectrogram_agrees_with_scipy(sound):
    mono = to_pcm(sound, SOUND_RATE)[0]
    window = signal.get_window("hann", 1024)
    transform = signal.ShortTimeFFT(window, 256, RATE)
    ours = 10 ** (spectrogram_db(mono) / 10)
    first = 2 - transform.p_min  # the first window that lies wholly inside the sound
    theirs = transform.spectrogram(mono)[:, first : first + ours.shape[1]]
    assert np.allclose(ours, theirs, rtol=1e-3, atol=1e-6 * ours.max())


def test_levels():
    assert level_dbfs(np.ones((1, 100), np.float32)) == 0
    assert level_dbfs(np.zeros((1, 100), np.float32)) == -120
    assert level_dbfs(np.zeros((1, 0), np.float32)) == -120
