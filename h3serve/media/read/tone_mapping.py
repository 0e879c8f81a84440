"""HDR and wide-gamut video as an ordinary screen shows it: BT.709 colours, white at 203 nits.

PQ and HLG to light (ITU-R BT.2100), to BT.709 primaries, bright parts rolled off (BT.2390's EETF), to BT.1886
signal. Diffuse white is 203 nits (BT.2408). The whole way is one table that FFmpeg's `lut3d` applies.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from h3serve.media.sources.media_file import MediaFile

Array = npt.NDArray[np.float64]
Filters = tuple[tuple[str, str], ...]

WHITE_NITS = 203.0
USUAL_PEAK_NITS = 1000.0  # of HLG, and of PQ that does not say for what screen it was made
_GAMMA = 2.4  # BT.1886
_POINTS = 65  # of the table, along each of its three sides; with 33, saturated colours are 15 levels off
# Numbers of ITU-T H.273.
_PQ, _HLG = 16, 18
_OWN_MATRICES = {14: "ICtCp", 15: "IPT of Dolby Vision"}
# Red, green, blue, white (x, y).
_D65 = (0.3127, 0.3290)
_BT709 = ((0.640, 0.330), (0.300, 0.600), (0.150, 0.060), _D65)
_BT2020 = ((0.708, 0.292), (0.170, 0.797), (0.131, 0.046), _D65)
_P3 = ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060), _D65)
_WIDE = {9: _BT2020, 12: _P3}
# BT.2100: PQ's and HLG's constants.
_M1, _M2, _C1, _C2, _C3 = 2610 / 16384, 2523 / 4096 * 128, 3424 / 4096, 2413 / 4096 * 32, 2392 / 4096 * 32
_A, _B, _C = 0.17883277, 0.28466892, 0.55991073
_LUMA_2020 = np.array([0.2627, 0.6780, 0.0593])


class Look(NamedTuple):
    """What has to be known of a frame's colours: numbers of its transfer and primaries, nits of its peak."""

    transfer: int
    primaries: int
    peak: float


def look_of(frame: Any) -> Look | None:
    """How the frame differs from BT.709 video; None if it does not. BT.601's primaries count as the same."""
    transfer, primaries = int(frame.color_trc), int(frame.color_primaries)
    if transfer in (_PQ, _HLG):
        return Look(
            transfer, primaries if primaries in _WIDE else 9, _peak(frame) if transfer == _PQ else USUAL_PEAK_NITS
        )
    return Look(0, primaries, WHITE_NITS) if primaries in _WIDE else None


def check_colours(file: MediaFile, frame: Any) -> None:
    """Raises MediaError for colours that cannot be turned into RGB here."""
    name = _OWN_MATRICES.get(int(frame.colorspace))
    if name is not None:
        raise file.error(f"its colours are in a form that is not read here ({name}); save it as HDR10, HLG or SDR")


@contextmanager
def tone_filters(frame: Any, pixel_format: str) -> Iterator[Filters]:
    """The filters from frames like `frame` to BT.709, working in `pixel_format`; to be added inside the block."""
    look = look_of(frame)
    if look is None:
        yield ()
        return
    with tempfile.TemporaryDirectory(prefix="h3serve-") as folder:
        path = Path(folder) / "look.cube"
        path.write_text(_cube(look))
        yield ("format", f"pix_fmts={pixel_format}"), ("lut3d", f"file='{path}':interp=tetrahedral")


def to_bt709(signal: Array, look: Look) -> Array:
    """R'G'B' [..., 3] in 0..1 of the look -> BT.709 R'G'B' in 0..1."""
    nits = np.maximum(_to_light(signal, look.transfer) @ _matrix(look.primaries).T, 0.0)
    brightest = nits.max(axis=-1, keepdims=True)
    if look.transfer:  # one factor for all three: the colour stays
        nits = nits * (_rolled_off(brightest, look.peak) / np.maximum(brightest, 1e-9))
    return np.clip(nits / WHITE_NITS, 0.0, 1.0) ** (1 / _GAMMA)


def pq_signal(nits: Array) -> Array:
    """BT.2100: the PQ signal, 0..1, of light in nits."""
    power = (np.clip(nits, 0, 10_000) / 10_000) ** _M1
    return np.asarray(((_C1 + _C2 * power) / (1 + _C3 * power)) ** _M2)


def _pq_light(signal: Array) -> Array:
    power = np.clip(signal, 0, 1) ** (1 / _M2)
    return np.asarray(10_000 * (np.maximum(power - _C1, 0) / (_C2 - _C3 * power)) ** (1 / _M1))


def _to_light(signal: Array, transfer: int) -> Array:
    if transfer == _PQ:
        return _pq_light(signal)
    if transfer != _HLG:
        return np.asarray(WHITE_NITS * signal**_GAMMA)
    scene = np.where(signal <= 0.5, signal**2 / 3, (np.exp((signal - _C) / _A) + _B) / 12)
    luma = (scene @ _LUMA_2020)[..., None]
    return np.asarray(USUAL_PEAK_NITS * scene * np.maximum(luma, 1e-9) ** 0.2)


def _rolled_off(nits: Array, peak: float) -> Array:
    """BT.2390: light up to `peak` into light up to WHITE_NITS; dark and middle parts stay as they are."""
    top = pq_signal(np.array(peak))
    e1, white = np.minimum(pq_signal(nits) / top, 1.0), pq_signal(np.array(WHITE_NITS)) / top
    if white >= 1:
        return nits
    knee = 1.5 * white - 0.5
    t = (e1 - knee) / (1 - knee)
    spline = (2 * t**3 - 3 * t**2 + 1) * knee + (t**3 - 2 * t**2 + t) * (1 - knee) + (-2 * t**3 + 3 * t**2) * white
    return _pq_light(np.where(e1 < knee, e1, spline) * top)


def _matrix(primaries: int) -> Array:
    """Linear RGB of the primaries -> linear RGB of BT.709."""
    return np.asarray(np.linalg.inv(_to_xyz(_BT709)) @ _to_xyz(_WIDE[primaries]))


def _to_xyz(points: tuple[tuple[float, float], ...]) -> Array:
    columns = np.array([(x / y, 1.0, (1 - x - y) / y) for x, y in points]).T
    return np.asarray(columns[:, :3] * np.linalg.solve(columns[:, :3], columns[:, 3]))


@lru_cache(maxsize=8)
def _cube(look: Look) -> str:
    """The table in the .cube format: red varies fastest."""
    side = np.linspace(0.0, 1.0, _POINTS)
    blues, greens, reds = np.meshgrid(side, side, side, indexing="ij")
    table = to_bt709(np.stack([reds, greens, blues], axis=-1), look).reshape(-1, 3)
    rows = ("{:.5f} {:.5f} {:.5f}\n" * len(table)).format(*table.ravel().tolist())
    return f"LUT_3D_SIZE {_POINTS}\n{rows}"


def _peak(frame: Any) -> float:
    """The brightest that the screen shows for which PQ was made (AVMasteringDisplayMetadata), in nits."""
    for data in frame.side_data:
        if data.type.name == "MASTERING_DISPLAY_METADATA":
            numbers = np.frombuffer(bytes(data), np.int32)
            above, below, is_said = (int(numbers[i]) for i in (18, 19, 21))
            if is_said and below > 0 and WHITE_NITS <= above / below <= 10_000:
                return above / below
    return USUAL_PEAK_NITS
