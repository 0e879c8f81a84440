"""Output paths are judged before any work; files are whole or absent."""

import wave as wave_module
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from h3serve.core.errors import OutputError, RequestError
from h3serve.media.write import outputs
from h3serve.media.write.outputs import check_output, replacing, save_frames, save_npz, save_wav

RNG = np.random.default_rng(5)
WAVE = RNG.uniform(-1, 1, (2, 1000)).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.mp4", "mp4"), ("A.MP4", "mp4"), ("a.wav", "wav"), ("a.npz", "npz"), ("a/", "frames")],
)
def test_suffix_decides(tmp_path: Path, name: str, kind: str) -> None:
    assert check_output(f"{tmp_path}/{name}") == kind
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a", "a.avi", "a.mp4.txt", "a.png", "", ".mp4"])
def test_unknown_suffix_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match=r"^out: .*\.mp4, \.wav or \.npz"):
        check_output(tmp_path / "x" if name == "" else tmp_path / name)


def test_bad_folders_are_refused(tmp_path: Path) -> None:
    """B64: writability is known before a generation starts."""
    (tmp_path / "d.mp4").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    for name, why in [
        ("no/a.mp4", "does not exist"),
        ("d.mp4", "is a folder"),
        ("full/", "new or empty"),
        ("full/x/a.mp4", "does not exist"),
    ]:
        with pytest.raises(RequestError, match=why):
            check_output(f"{tmp_path}/{name}")


def test_unwritable_folder_is_refused() -> None:
    with pytest.raises(RequestError, match="cannot be written to"):
        check_output("/proc/a.mp4")


def test_missing_encoder_is_known_up_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs.av, "codecs_available", {"aac"})
    with pytest.raises(OutputError, match="lacks libx264"):
        check_output(tmp_path / "a.mp4")


def test_float_wav_is_exact(tmp_path: Path) -> None:
    save_wav(tmp_path / "a.wav", WAVE)
    with av.open(str(tmp_path / "a.wav")) as box:
        assert box.streams.audio[0].codec_context.sample_rate == 32_000
        packed = np.concatenate([f.to_ndarray() for f in box.decode(audio=0)], axis=1)
    assert np.array_equal(packed.reshape(-1, 2).T, WAVE)


def test_16_bit_wav_rounds_and_clips(tmp_path: Path) -> None:
    wave = WAVE.copy()
    wave[0, :3] = [2.0, -2.0, 0.5 / 32767 + 1e-6]
    save_wav(tmp_path / "a.wav", wave, bits=16)
    with wave_module.open(str(tmp_path / "a.wav")) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (32_000, 2, 2)
        got = np.frombuffer(file.readframes(1000), "<i2").reshape(-1, 2).T
    assert got[0, :3].tolist() == [32767, -32767, 1]
    assert np.abs(got / 32767 - wave.clip(-1, 1)).max() <= 0.5001 / 32767


def test_frames_folder(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (3, 7, 5, 3), np.uint8)
    save_frames(f"{tmp_path}/out/", pixels, WAVE)
    names = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert names == ["audio.wav", "frame_00000.png", "frame_00001.png", "frame_00002.png"]
    for index in range(3):
        assert np.array_equal(np.asarray(Image.open(tmp_path / "out" / f"frame_0000{index}.png")), pixels[index])
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_npz_is_exact_and_reproducible(tmp_path: Path) -> None:
    arrays = {"video": RNG.integers(0, 256, (2, 4, 4, 3), np.uint8), "audio": WAVE}
    save_npz(tmp_path / "a.npz", arrays)
    save_npz(tmp_path / "b.npz", arrays)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    with np.load(tmp_path / "a.npz") as back:
        assert all(np.array_equal(back[name], value) for name, value in arrays.items())


@pytest.mark.parametrize("name", ["a.wav", "out/"])
def test_failures_leave_nothing(tmp_path: Path, name: str) -> None:
    bad = WAVE.copy()
    bad[0, 0] = np.nan
    with pytest.raises(OutputError, match="1 of 2000 samples"):
        if name == "a.wav":
            save_wav(tmp_path / name, bad)
        else:
            save_frames(f"{tmp_path}/{name}", np.zeros((2, 4, 4, 3), np.uint8), bad)
    assert list(tmp_path.iterdir()) == []


def test_older_file_survives_a_failure(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"old")
    with pytest.raises(OutputError):
        save_wav(tmp_path / "a.wav", WAVE[:1])
    assert (tmp_path / "a.wav").read_bytes() == b"old"


def test_a_folder_that_went_away(tmp_path: Path) -> None:
    """The temporary file is the first thing that fails, and is one sentence too."""
    with (
        pytest.raises(OutputError, match="a.mp4 could not be written: No such file"),
        replacing(tmp_path / "no" / "a.mp4"),
    ):
        pytest.fail("there is nothing to write to")
