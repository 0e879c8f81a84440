"""Any recording becomes the same sound at 32 kHz, at its time, or is refused with a reason."""

import tracemalloc
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from h3serve.core.errors import MediaError
from h3serve.media.read import audio
from h3serve.media.read.audio import decode_sound, load_audio
from h3serve.media.read.probe import probe_media
from tests.media.films import counter, film
from tests.media.sounds import click, click_time, medium, pitch, record, tone

RATES = [8_000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 88_200, 96_000, 176_400, 192_000]
# name of the file: codec
CODECS = {
    "u8.wav": "pcm_u8",
    "s16.wav": "pcm_s16le",
    "s24.wav": "pcm_s24le",
    "s32.wav": "pcm_s32le",
    "f32.wav": "pcm_f32le",
    "f64.wav": "pcm_f64le",
    "x.aiff": "pcm_s16be",
    "x.flac": "flac",
    "x.mp3": "libmp3lame",
    "x.m4a": "aac",
    "alac.m4a": "alac",
    "aac.mkv": "aac",
    "x.ogg": "libopus",
    "x.webm": "libopus",
    "pcm.mov": "pcm_s24be",
}
EXACT = {"s16.wav": 2**-15, "s24.wav": 2**-23, "s32.wav": 2**-24, "f32.wav": 0, "f64.wav": 0, "x.flac": 2**-15}


# --- pitch ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("soundtrack", [False, True])
@pytest.mark.parametrize("rate", RATES)
def test_440_hz_from_every_rate(tmp_path: Path, rate: int, soundtrack: bool) -> None:
    path = record(tmp_path / "a.wav", tone(rate, 1.2), rate)
    wave = load_audio(medium(path), 1.0, soundtrack=soundtrack)
    assert wave.shape == (2, 32_000) and wave.dtype == np.float32
    for channel in wave:
        assert pitch(channel) == pytest.approx(440, abs=0.05)
        assert np.abs(channel).max() == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize(("name", "codec"), CODECS.items())
def test_440_hz_from_every_format(tmp_path: Path, name: str, codec: str) -> None:
    path = record(tmp_path / name, tone(48_000, 1.2), 48_000, codec)
    wave = load_audio(medium(path), 1.0)
    for channel in wave:
        assert pitch(channel) == pytest.approx(440, abs=0.1)
        assert np.abs(channel[1000:-1000]).max() == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize(("name", "step"), EXACT.items())
def test_lossless_formats_are_exact(tmp_path: Path, name: str, step: float) -> None:
    sent = np.random.default_rng(0).uniform(-0.9, 0.9, (2, 4_800)).astype(np.float32)
    got, rate = decode_sound(medium(record(tmp_path / name, sent, 48_000, CODECS[name])), 0.1)
    assert rate == 48_000
    np.testing.assert_allclose(got, sent, atol=step, rtol=0)


@pytest.mark.parametrize(
    ("name", "codec", "rate", "channels"),
    [
        ("a.wv", "wavpack", 48_000, 2),
        ("a.tta", "tta", 48_000, 2),
        ("a.caf", "pcm_s16be", 48_000, 2),
        ("a.au", "pcm_s16be", 48_000, 2),
        ("a.ac3", "ac3", 48_000, 2),
        ("a.eac3", "eac3", 48_000, 2),
        ("a.amr", "libopencore_amrnb", 8_000, 1),
        ("a.flv", "aac", 44_100, 2),
    ],
)
def test_formats_without_a_container_worth_the_name(
    tmp_path: Path, name: str, codec: str, rate: int, channels: int
) -> None:
    file = medium(record(tmp_path / name, tone(rate, 3.0, channels=channels), rate, codec))
    probe = probe_media(file)
    assert (probe.kind, probe.audio_seconds) == ("audio", pytest.approx(3.0, abs=0.06))
    wave = load_audio(file, probe.audio_seconds)
    for channel in wave:
        assert pitch(channel[3_200:-3_200]) == pytest.approx(440, abs=0.2)
    assert load_audio(file, 1.0, start_seconds=1.5).shape == (2, 32_000)


# --- channels ----------------------------------------------------------------------------------------


def test_mono_is_repeated_at_its_own_loudness(tmp_path: Path) -> None:
    sent = tone(32_000, 0.5, channels=1)
    wave = load_audio(medium(record(tmp_path / "a.wav", sent, 32_000)), 0.5)
    np.testing.assert_array_equal(wave, np.repeat(sent, 2, axis=0))


def test_left_stays_left(tmp_path: Path) -> None:
    sent = np.concatenate([tone(32_000, 0.5, 300, 1), tone(32_000, 0.5, 500, 1)])
    wave = load_audio(medium(record(tmp_path / "a.wav", sent, 32_000)), 0.5)
    np.testing.assert_array_equal(wave, sent)


@pytest.mark.parametrize("layout", ["5.1", "7.1"])
def test_surround_is_mixed_down(tmp_path: Path, layout: str) -> None:
    """Centre and surrounds at 0.7071 to their side(s), the bass channel not at all: FFmpeg's matrix."""
    channels = {"5.1": 6, "7.1": 8}[layout]
    sent = np.random.default_rng(1).uniform(-0.2, 0.2, (channels, 3_200)).astype(np.float32)
    wave = load_audio(medium(record(tmp_path / "a.wav", sent, 32_000, layout=layout)), 0.1)
    half = np.sqrt(0.5)
    for side, front in enumerate(wave):
        expected = sent[side] + half * (sent[2] + sum(sent[i + side] for i in range(4, channels, 2)))
        np.testing.assert_allclose(front, expected, atol=1e-6)


def test_channels_without_a_name_are_refused_if_there_is_no_rule_for_them(tmp_path: Path) -> None:
    path = tmp_path / "nine.wav"
    header = b"RIFF\xff\xff\xff\x7fWAVEfmt \x10\0\0\0\x01\0\x09\0\x80\xbb\0\0\0\x2f\x0d\0\x12\0\x10\0data\0\xe1\0\0"
    path.write_bytes(header + bytes(57_600))
    with pytest.raises(MediaError, match=r"9 channels.*mixed down"):
        load_audio(medium(path), 0.05)


# --- time -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "codec"), CODECS.items())
def test_a_click_stays_at_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, codec: str) -> None:
    """In spite of what encoders put in front, from the beginning and after a seek."""
    path = record(tmp_path / name, click(48_000, 6, at=4.5), 48_000, codec)
    whole = load_audio(medium(path), 5.0)
    assert click_time(whole) == pytest.approx(4.5, abs=1e-3)
    late = load_audio(medium(path), 1.0, start_seconds=4.2)
    assert click_time(late) == pytest.approx(0.3, abs=1e-3)
    monkeypatch.setattr(audio, "_SEEK_FROM_S", 3)
    sought = load_audio(medium(path), 1.0, start_seconds=4.2)
    rounded = 5e-4 if Path(name).suffix in (".mkv", ".webm") else 0  # their times are whole milliseconds
    assert click_time(sought) == pytest.approx(0.3, abs=1e-3 + rounded)


@pytest.mark.parametrize("name", ["f32.wav", "x.flac", "alac.m4a", "x.mp3"])
def test_seeking_saves_time_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    noise = np.random.default_rng(2).uniform(-0.5, 0.5, (2, 44_100 * 6)).astype(np.float32)
    path = record(tmp_path / name, noise, 44_100, CODECS[name])
    whole, rate = decode_sound(medium(path), 1.0, start_seconds=4.5)
    monkeypatch.setattr(audio, "_SEEK_FROM_S", 3)
    little = 6 * rate * 8 * 3 // 4  # bytes: three quarters of what the file unpacks to
    sought, _ = decode_sound(medium(path, max_decoded_bytes=little), 1.0, start_seconds=4.5)
    np.testing.assert_allclose(sought, whole, atol=1e-6)


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".mov"])
@pytest.mark.parametrize("late", [0.0, 0.3])
def test_a_soundtrack_keeps_its_place_in_the_film(tmp_path: Path, suffix: str, late: float) -> None:
    pictures = [counter(i) for i in range(36)]
    sound = click(32_000, 1.1, at=0.5)
    path = film(tmp_path / f"f{suffix}", pictures, sound=sound, sound_start=late)
    wave = load_audio(medium(path), 1.0, soundtrack=True)
    assert click_time(wave) == pytest.approx(0.5 + late, abs=1e-3)
    assert np.abs(wave[:, : int(late * 32_000) + 3_200]).max() < 1e-2


def test_a_late_picture_moves_nothing(tmp_path: Path) -> None:
    """The earlier of picture and sound is time 0, here the sound."""
    times = [Fraction(1, 2) + Fraction(i, 24) for i in range(24)]
    path = film(tmp_path / "f.mp4", [counter(i) for i in range(24)], times, sound=click(32_000, 1.5, at=0.75))
    assert click_time(load_audio(medium(path), 1.2, soundtrack=True)) == pytest.approx(0.75, abs=1e-3)


def test_a_gap_in_the_timestamps_is_silence(tmp_path: Path) -> None:
    starts = [0.1 * i + (0.5 if i >= 5 else 0) for i in range(10)]
    path = record(tmp_path / "gap.mkv", tone(32_000, 1.0), 32_000, starts=starts)
    wave = load_audio(medium(path), 1.5)
    loud = np.abs(wave).reshape(2, 15, 3_200).max(axis=2) > 0.4
    assert loud.tolist() == [[True] * 5 + [False] * 5 + [True] * 5] * 2


# --- lengths -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "samples"), [(32_000, 165_333), (44_100, 165_334), (48_000, 165_334)])
def test_samples_are_cut_before_resampling(tmp_path: Path, rate: int, samples: int) -> None:
    """124 frames at 24 fps: int(seconds·rate) samples, then rounded up."""
    path = record(tmp_path / "a.wav", tone(rate, 5.5), rate)
    assert load_audio(medium(path), 124 / 24).shape == (2, samples)
    assert load_audio(medium(path), 124 / 24, soundtrack=True).shape == (2, 165_334)


def test_a_soundtrack_at_44100_is_not_resampled_twice(tmp_path: Path) -> None:
    path = record(tmp_path / "a.wav", tone(44_100, 1.0), 44_100)
    plain, soundtrack = load_audio(medium(path), 0.5), load_audio(medium(path), 0.5, soundtrack=True)
    np.testing.assert_array_equal(plain, soundtrack)


@pytest.mark.parametrize(("name", "codec"), CODECS.items())
def test_all_of_what_the_probe_promises_is_there(tmp_path: Path, name: str, codec: str) -> None:
    file = medium(record(tmp_path / name, tone(48_000, 1.0), 48_000, codec))
    seconds = probe_media(file).audio_seconds
    assert seconds == pytest.approx(1.0, abs=0.05)
    wave = load_audio(file, seconds)
    assert abs(wave.shape[1] - seconds * 32_000) <= 1
    assert np.abs(wave[:, 15_000:16_000]).max() > 0.4


def test_shorter_than_asked(tmp_path: Path) -> None:
    file = medium(record(tmp_path / "a.wav", tone(32_000, 1.0), 32_000))
    wave = load_audio(file, 1.05)
    assert wave.shape == (2, 33_600) and not wave[:, 32_000:].any()
    with pytest.raises(MediaError, match=r"after 1\.00 of the 1\.20 s") as caught:
        load_audio(file, 1.2)
    assert caught.value.field == "conditions[0].uri" and "\n" not in str(caught.value)
    with pytest.raises(MediaError, match=r"after 0\.00 of the 1\.00 s"):
        load_audio(file, 1.0, start_seconds=5.0)


# --- damage -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["s16.wav", "x.flac", "x.mp3", "x.ogg", "aac.mkv"])
def test_a_cut_tail_does_not_matter_unless_it_is_needed(tmp_path: Path, name: str) -> None:
    path = record(tmp_path / name, np.float32(0.3) * tone(48_000, 2.0, 440), 48_000, CODECS[name])
    before = load_audio(medium(path), 0.8)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * 0.6)])
    np.testing.assert_array_equal(load_audio(medium(path), 0.8), before)
    with pytest.raises(MediaError, match="ends or is damaged"):
        load_audio(medium(path), 1.8)


def test_damage_in_the_needed_part_is_refused_and_elsewhere_ignored(tmp_path: Path) -> None:
    noise = np.random.default_rng(3).uniform(-0.5, 0.5, (2, 96_000)).astype(np.float32)
    path = record(tmp_path / "a.flac", noise, 48_000, "flac")
    before = load_audio(medium(path), 0.8)
    data = bytearray(path.read_bytes())
    middle = len(data) * 6 // 10
    data[middle : middle + 8] = bytes(8)
    path.write_bytes(data)
    np.testing.assert_array_equal(load_audio(medium(path), 0.8), before)
    with pytest.raises(MediaError, match="ends or is damaged after 1"):
        load_audio(medium(path), 1.8)


def test_no_sound_at_all(tmp_path: Path) -> None:
    path = film(tmp_path / "silent.mp4", [counter(i) for i in range(5)])
    with pytest.raises(MediaError, match="no sound"):
        load_audio(medium(path), 0.2, soundtrack=True)


@pytest.mark.parametrize("content", [b"", b"RIFF", bytes(2_000), b"not a sound at all " * 50])
def test_content_that_is_no_sound(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    with pytest.raises(MediaError) as caught:
        load_audio(medium(path), 1.0)
    assert "\n" not in str(caught.value) and str(tmp_path) not in str(caught.value)


def test_values_that_are_not_numbers(tmp_path: Path) -> None:
    sent = tone(32_000, 0.5)
    sent[1, 4_000] = np.nan
    with pytest.raises(MediaError, match="not numbers"):
        load_audio(medium(record(tmp_path / "a.wav", sent, 32_000)), 0.5)


def test_a_rate_that_changes(tmp_path: Path) -> None:
    parts = [record(tmp_path / f"{rate}.mp3", tone(rate, 1.0), rate, "libmp3lame") for rate in (44_100, 32_000)]
    path = tmp_path / "joined.mp3"
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    with pytest.raises(MediaError, match="changes its sample rate"):
        load_audio(medium(path), 1.8)


@pytest.mark.parametrize("rate", [500, 2_000_000])
def test_a_rate_out_of_reason(tmp_path: Path, rate: int) -> None:
    path = record(tmp_path / "a.wav", tone(32_000, 0.1), 32_000)
    data = bytearray(path.read_bytes())
    at = data.index(b"fmt ") + 12
    data[at : at + 8] = rate.to_bytes(4, "little") + (rate * 8).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(MediaError, match=f"{rate} samples per second"):
        load_audio(medium(path), 0.01)


@pytest.mark.parametrize("name", ["s16.wav", "x.flac", "x.mp3", "x.m4a", "x.ogg", "aac.mkv"])
def test_mutated_files_are_used_or_refused(tmp_path: Path, name: str) -> None:
    """Shard, overwritten and flipped: a wave of the right shape, or one MediaError."""
    rng = np.random.default_rng(len(name))
    whole = record(tmp_path / name, tone(48_000, 1.0), 48_000, CODECS[name]).read_bytes()
    path = tmp_path / f"m{name}"
    used = 0
    for number in range(24):
        data = bytearray(whole)
        at = int(rng.integers(len(data) // (number % 3 * 10 + 1)))  # the head of the file more often
        if number % 4 == 0:
            del data[at:]
        elif number % 4 == 1:
            data[at : at + 64] = rng.bytes(64)
        else:
            data[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        try:
            wave = load_audio(medium(path), 0.8, start_seconds=0.1)
        except MediaError as error:
            assert "\n" not in str(error)
        else:
            used += 1
            assert wave.shape[0] == 2 and abs(wave.shape[1] - 25_600) <= 32  # the rate may have been hit
            assert np.isfinite(wave).all()
    assert used < 24


# --- limits -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bomb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A minute of 8 silent channels at 192 kHz: 370 MB unpacked."""
    path = record(tmp_path_factory.mktemp("bomb") / "a.flac", np.zeros((8, 192_000 * 60), np.float32), 192_000, "flac")
    assert path.stat().st_size < 1_500_000
    return path


def test_a_small_file_that_unpacks_to_much_is_stopped_early(bomb: Path) -> None:
    tracemalloc.start()
    with pytest.raises(MediaError, match="unpacks to more than 20000000 bytes"):
        load_audio(medium(bomb, max_decoded_bytes=20_000_000), 60.0, start_seconds=0.5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 120_000_000  # the array that was asked for, not what the file unpacks to


def test_decoding_stops_where_the_need_ends(bomb: Path) -> None:
    one_second = 192_000 * 8 * 4
    assert load_audio(medium(bomb, max_decoded_bytes=2 * one_second), 1.0).shape == (2, 32_000)


def test_a_file_over_its_size_limit(tmp_path: Path) -> None:
    path = record(tmp_path / "a.wav", tone(32_000, 0.5), 32_000)
    with pytest.raises(MediaError, match="at most 1000"):
        load_audio(medium(path, max_file_bytes=1_000), 0.5)


@pytest.mark.parametrize("soundtrack", [False, True])
@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000, 96_000])
def test_every_rate_keeps_the_phase(tmp_path: Path, rate: int, soundtrack: bool) -> None:
    """The sine itself at 32 kHz, sample by sample: one sample late would be 0.04 off at 440 Hz."""
    path = record(tmp_path / "a.wav", tone(rate, 1.2), rate)
    wave = load_audio(medium(path), 1.0, soundtrack=soundtrack)
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(32_000) / 32_000)
    for channel in wave:
        np.testing.assert_allclose(channel[500:31_500], expected[500:31_500], atol=4e-3)
