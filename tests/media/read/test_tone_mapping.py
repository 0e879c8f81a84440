"""HDR and wide-gamut videos, against the numbers that the ITU publishes."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from h3serve.core.errors import MediaError
from h3serve.media.read.frame_clock import find_opening
from h3serve.media.read.tone_mapping import Look, check_colours, look_of, pq_signal, to_bt709
from h3serve.media.read.video import decode_clip
from h3serve.media.sources.media_file import MediaFile

PQ, HLG = Look(16, 9, 1000.0), Look(18, 9, 1000.0)
# BT.2087: linear BT.709 to linear BT.2020.
TO_2020 = np.array([[0.6274, 0.3293, 0.0433], [0.0691, 0.9195, 0.0114], [0.0164, 0.0880, 0.8956]])
# BT.2020's luma.
KR, KB = 0.2627, 0.0593


def shown(nits: np.ndarray) -> np.ndarray:
    """BT.1886: the signal that a screen whose white is 203 nits shows as `nits`."""
    return (nits / 203) ** (1 / 2.4)


def hlg_signal(nits: np.ndarray) -> np.ndarray:
    """BT.2100: HLG of light from a 1000-nit screen (inverse OOTF, then OETF)."""
    luma = nits @ np.array([KR, 1 - KR - KB, KB])
    scene = nits / 1000 * (luma / 1000) ** ((1 - 1.2) / 1.2)
    a, b, c = 0.17883277, 0.28466892, 0.55991073
    return np.where(scene <= 1 / 12, np.sqrt(3 * scene), a * np.log(np.maximum(12 * scene - b, 1e-9)) + c)


def test_pq_is_the_published_curve() -> None:
    """ST 2084 / BT.2408: 100 nits at 50.8 %, 203 at 58.1 %, 1000 at 75.2 %."""
    got = pq_signal(np.array([0.0, 100, 203, 1000, 10_000]))
    np.testing.assert_allclose(got, [0.0, 0.508, 0.581, 0.752, 1.0], atol=5e-4)


@pytest.mark.parametrize(("look", "code"), [(PQ, 0.38), (HLG, 0.38)])
def test_grey_card(look: Look, code: float) -> None:
    """BT.2408: an 18 % grey card lies at 38 % of either signal, 26 nits; that is below the roll-off."""
    got = to_bt709(np.full(3, code), look)
    np.testing.assert_allclose(got, shown(np.array([26.0] * 3)), atol=0.01)


@pytest.mark.parametrize(("look", "code"), [(PQ, 0.581), (HLG, 0.75)])
def test_diffuse_white_is_bright_but_not_the_brightest(look: Look, code: float) -> None:
    """BT.2390's spline at 203 nits of 1000, worked out by hand: 0.7387 of 0.7518, that is 161 nits."""
    got = to_bt709(np.full(3, code), look)
    np.testing.assert_allclose(got, shown(np.array([161.0] * 3)), atol=0.01)
    assert to_bt709(np.full(3, 0.7518), PQ) == pytest.approx(1.0, abs=1e-3)
    assert to_bt709(np.ones(3), HLG) == pytest.approx(1.0, abs=1e-3)
    assert to_bt709(np.zeros(3), look) == pytest.approx(0.0, abs=1e-3)


def test_brighter_stays_brighter() -> None:
    ramp = np.linspace(0, 0.75, 200)
    for look in (PQ, HLG):
        grey = to_bt709(np.repeat(ramp[:, None], 3, axis=1), look)[:, 1]
        assert (np.diff(grey) > 0).all()


def clip(path: Path, rgb: np.ndarray, transfer: int, primaries: int) -> MediaFile:
    """Three lossless 10-bit frames of one colour, R'G'B' 0..1, in BT.2020's Y'CbCr."""
    red, _, blue = rgb
    luma = float(rgb @ np.array([KR, 1 - KR - KB, KB]))
    code = (
        round(64 + 876 * luma),
        round(512 + 896 * (blue - luma) / (2 * (1 - KB))),
        round(512 + 896 * (red - luma) / (2 * (1 - KR))),
    )
    with av.open(str(path), "w") as box:
        stream = box.add_stream("ffv1", rate=24)
        stream.width, stream.height, stream.pix_fmt = 64, 32, "yuv444p10le"
        context = stream.codec_context
        context.color_trc, context.color_primaries, context.colorspace, context.color_range = transfer, primaries, 9, 1
        for index in range(3):
            frame = av.VideoFrame(64, 32, "yuv444p10le")
            for plane, value in zip(frame.planes, code, strict=True):
                plane.update(np.full(plane.buffer_size // 2, value, np.uint16).tobytes())
            frame.pts, frame.time_base = index, Fraction(1, 24)
            frame.color_trc, frame.color_primaries, frame.colorspace, frame.color_range = transfer, primaries, 9, 1
            box.mux(stream.encode(frame))
        box.mux(stream.encode(None))
    return MediaFile(path)


COLOURS = [(50.0, 50, 50), (60, 10, 5), (5, 60, 10), (8, 12, 60), (0.5, 0.5, 0.5)]


@pytest.mark.parametrize("nits", COLOURS)
@pytest.mark.parametrize("transfer", [16, 18])
def test_an_hdr_clip_shows_the_colours_that_were_meant(tmp_path: Path, transfer: int, nits: tuple[float, ...]) -> None:
    """Colours within BT.709 and below the roll-off come out exactly as an ordinary clip would hold them."""
    wide = TO_2020 @ np.array(nits)
    signal = pq_signal(wide) if transfer == 16 else hlg_signal(wide)
    pixels = decode_clip(clip(tmp_path / "a.mkv", signal, transfer, 9), (48, 32), 3)
    expected = 255 * shown(np.array(nits))
    np.testing.assert_allclose(pixels[1, 16, 24], expected, atol=4)
    assert (pixels == pixels[0, 0, 0]).all()


def test_a_wide_gamut_clip(tmp_path: Path) -> None:
    """BT.2020 without HDR: the same colour under other primaries."""
    meant = np.array([0.8, 0.3, 0.2])
    wide = (TO_2020 @ meant**2.4) ** (1 / 2.4)
    pixels = decode_clip(clip(tmp_path / "a.mkv", wide, 14, 9), (64, 32), 1)
    np.testing.assert_allclose(pixels[0, 16, 24], 255 * meant, atol=3)


def test_an_ordinary_clip_is_left_alone(tmp_path: Path) -> None:
    for transfer, primaries in ((1, 1), (2, 2), (6, 6)):
        assert look_of(find_opening(clip(tmp_path / "a.mkv", np.full(3, 0.5), transfer, primaries)).frame) is None


def test_the_peak_that_a_file_states_is_used(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as box:
        stream = box.add_stream("libx265", rate=24)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p10le"
        screen = "G(13250,34500)B(7500,3000)R(34000,16000)WP(15635,16450)L(40000000,50)"  # 4000 nits
        stream.options = {
            "x265-params": f"hdr10=1:master-display={screen}:colorprim=9:transfer=16:colormatrix=9:log-level=none"
        }
        for index in range(3):
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 100, np.uint8), format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, 24)
            box.mux(stream.encode(frame))
        box.mux(stream.encode(None))
    assert look_of(find_opening(MediaFile(path)).frame) == Look(16, 9, pytest.approx(4000.0))


def test_dolby_visions_own_colours_are_refused(tmp_path: Path) -> None:
    frame = av.VideoFrame(16, 16, "yuv420p10le")
    frame.colorspace = 15
    with pytest.raises(MediaError, match="Dolby Vision"):
        check_colours(MediaFile(tmp_path / "a.mp4"), frame)
