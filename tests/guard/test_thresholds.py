"""Every threshold of the guard from both sides, at the limits of docs/guard.md: inside passes, outside fails."""

from typing import Any

import numpy as np
import pytest
from skimage.metrics import structural_similarity

from h3serve.guard.audio_faults import check_audio, clipped_share
from h3serve.guard.audio_metrics import compare_audio, correlation, level_dbfs, spectral_similarity
from h3serve.guard.baselines import compare_memory, compare_time, improvements
from h3serve.guard.cost_meters import Meters
from h3serve.guard.image_metrics import compare_frames, lag
from h3serve.guard.pcm import RATE
from h3serve.guard.thresholds import MIB, TIME_LIMITS, AudioLimits, FrameLimits, MemoryLimits
from tests.guard.conftest import failed

GIB = 1024 * MIB
Array = np.ndarray[Any, Any]


def meters(load: float = 0, runtime: float = 0, total: float = 0, stages: Any = None, steps: Any = None) -> Meters:
    """Peaks in MiB."""
    return Meters(
        load_peak_bytes=round(load * MIB),
        runtime_peak_bytes=round(runtime * MIB),
        total_seconds=total,
        stage_seconds=stages or {},
        step_seconds=steps or [1.0],
    )


# --- memory: 1 % and 2 % over the baseline, and 128 MiB ----------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ((9216, 2048), (9216, 4096), {"runtime peak"}),  # loading needs more than the run and must not hide it
        ((2048, 9216), (4096, 9216), {"load peak"}),
        ((0, 0), (128, 128), set()),
        ((0, 0), (129, 0), {"load peak"}),
        ((0, 0), (0, 129), {"runtime peak"}),
        ((100_000, 100_000), (101_128, 102_128), set()),
        ((100_000, 100_000), (101_129, 102_128), {"load peak"}),
        ((100_000, 100_000), (101_128, 102_129), {"runtime peak"}),
        ((9216, 9216), (1, 1), set()),
    ],
)
def test_memory(before: tuple[int, int], after: tuple[int, int], names: set[str]) -> None:
    assert failed(compare_memory(meters(*before), meters(*after), MemoryLimits())) == names


# --- time: a share by run kind, and 0.05 s -------------------------------------------------------------

SHARES = {"nightly": (0.15, 0.10, 0.5, 0.25), "change": (0.25, 0.25, 0.8, 0.30)}  # total, denoise, other stages, steps


@pytest.mark.parametrize("kind", SHARES)
@pytest.mark.parametrize("which", range(5))
def test_time(kind: Any, which: int) -> None:
    """Each of five times of 100 s, grown to 0.01 s inside its limit and to 0.01 s outside."""
    names = ("total time", "denoise time", "encode text time", "median step time", "slowest step time")
    share = (*SHARES[kind], SHARES[kind][3])[which]

    def measured(seconds: float) -> Meters:
        total, denoise, text, median, slowest = (seconds if i == which else 100.0 for i in range(5))
        steps = [median, median, max(median, slowest)] if which == 3 else [100.0, 100.0, slowest]
        return meters(total=total, stages={"denoise": denoise, "encode text": text}, steps=steps)

    limits, usual = TIME_LIMITS[kind], measured(100.0)
    edge = 100 * (1 + share) + 0.05
    assert names[which] not in failed(compare_time(usual, measured(edge - 0.01), limits))
    assert names[which] in failed(compare_time(usual, measured(edge + 0.01), limits))


@pytest.mark.parametrize(("seconds", "names"), [(0.049, set()), (0.051, {"read media time"})])
def test_a_stage_of_no_time_may_grow_by_fifty_milliseconds(seconds: float, names: set[str]) -> None:
    before, after = meters(stages={"read media": 0.0}), meters(stages={"read media": seconds})
    assert failed(compare_time(before, after, TIME_LIMITS["nightly"])) == names


@pytest.mark.parametrize("name", ["total time", "runtime peak", "load peak"])
def test_a_gain_of_more_than_a_fifth_is_told(name: str) -> None:
    def measured(value: float) -> Meters:
        load, runtime, total = (value if name == n else 100.0 for n in ("load peak", "runtime peak", "total time"))
        return meters(load, runtime, total)

    assert improvements(measured(100), measured(80.5)) == []
    assert [line.split(" fell")[0] for line in improvements(measured(100), measured(79.5))] == [name]


# --- pictures -------------------------------------------------------------------------------------------

GREY = np.full((64, 64, 3), 128, np.uint8)


def against(frame: Array, truth: Array = GREY, **more: Any) -> set[str]:
    return failed(compare_frames({0: truth}, 1, frame[None], limits=FrameLimits(), **more))


def checkered(levels: int) -> Array:
    """Up and down by `levels` in turn: the mean stays, every pixel differs by as much."""
    signs = 1 - 2 * (np.indices((64, 64)).sum(0) % 2)
    return (GREY + levels * signs[..., None]).astype(np.uint8)


def sparse(share: float, levels: int = 100) -> Array:
    """That share of the pixels differs by `levels`."""
    frame = GREY.astype(int).reshape(-1, 3)
    count = round(share * len(frame))
    frame[:count] += np.where(np.arange(count) % 2, levels, -levels)[:, None]
    return frame.reshape(GREY.shape).astype(np.uint8)


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("mean difference", checkered(10), checkered(11)),
        ("brightness difference", GREY + np.uint8(3), GREY + np.uint8(4)),
        ("brightness difference", GREY - np.uint8(3), GREY - np.uint8(4)),
        # Mean square 100^2 * share: 24 dB is 255^2 / 10^2.4 = 258.87, a share of 2.589 %.
        ("PSNR", sparse(0.0255), sparse(0.0265)),
    ],
)
def test_frame_levels(name: str, inside: Array, outside: Array) -> None:
    assert name not in against(inside) and name in against(outside)


def test_frame_likeness(clip: Array) -> None:
    """Noise that scikit-image finds to be a little more, and a little less, than 0.92 alike."""
    noise = np.random.default_rng(1).standard_normal(clip[0].shape)

    def noisy(strength: float) -> Array:
        return np.clip(clip[0] + strength * noise, 0, 255).astype(np.uint8)

    weak, strong = 1.0, 60.0
    while strong - weak > 0.1:
        middle = (weak + strong) / 2
        alike = structural_similarity(clip[0], noisy(middle), channel_axis=2, data_range=255) > 0.92
        weak, strong = (middle, strong) if alike else (weak, middle)
    assert "SSIM" not in against(noisy(weak), clip[0]) and "SSIM" in against(noisy(strong), clip[0])


@pytest.mark.parametrize(("likeness", "fails"), [(0.901, False), (0.899, True)])
def test_clip_likeness(likeness: float, fails: bool) -> None:
    assert ("CLIP" in against(GREY, clip=lambda *_: likeness)) is fails


@pytest.mark.parametrize(("shift", "found"), [(-2, -2), (2, 2), (3, 0), (-3, 0)])
def test_a_late_frame_is_looked_for_two_frames_either_way(shift: int, found: int) -> None:
    """All frames differ by 40 levels but one, that is the truth."""
    video = np.stack([GREY + np.uint8(40)] * 9)
    video[4 + shift] = GREY
    assert lag(GREY, video, 4) == found


def test_one_frame_late_fails() -> None:
    video = np.stack([GREY, GREY + np.uint8(40), GREY])
    assert "frame lag" not in failed(compare_frames({0: GREY}, 3, video, limits=FrameLimits()))
    assert "frame lag" in failed(compare_frames({1: GREY}, 3, video, limits=FrameLimits()))


@pytest.mark.parametrize(("there", "found"), [(20, 1), (21, 0)])
def test_a_neighbour_has_to_fit_twice_as_well(there: int, found: int) -> None:
    video = np.stack([GREY + np.uint8(40)] * 3)
    video[2] = GREY + np.uint8(there)
    assert lag(GREY, video, 1) == found


# --- sound ----------------------------------------------------------------------------------------------


def tones(*parts: tuple[float, float]) -> Array:
    """float32 [n] of two seconds: (Hz, amplitude) each; whole Hz are orthogonal over whole seconds."""
    t = np.arange(2 * RATE) / RATE
    return sum(amplitude * np.sin(2 * np.pi * hertz * t) for hertz, amplitude in parts).astype(np.float32)


def hiss(seed: int) -> Array:
    noise = np.random.default_rng(seed).standard_normal(2 * RATE)
    return (0.1 * noise / noise.std()).astype(np.float32)


def mixed(share: float) -> Array:
    """As loud as `hiss(1)` and correlated with it by `share`, whatever the alignment."""
    a, b = hiss(1), hiss(2)
    b = b - a * (a @ b) / (a @ a)
    b *= np.sqrt((a @ a) / (b @ b))
    return share * a + np.float32(np.sqrt(1 - share**2)) * b


def hears(truth: Array, sound: Array) -> set[str]:
    return failed(compare_audio(truth, sound, limits=AudioLimits()))


def stereo(left: Array, right: Array | None = None) -> Array:
    return np.stack([left, left if right is None else right])


@pytest.mark.parametrize(("share", "fails"), [(0.905, False), (0.895, True)])
def test_waveform_and_channel_correlation(share: float, fails: bool) -> None:
    names = hears(stereo(hiss(1)), stereo(mixed(share)))
    assert ("waveform correlation" in names) is fails and ("channel correlation" in names) is fails
    names = hears(stereo(hiss(1)), stereo(hiss(1), mixed(share)))
    assert ("channel correlation" in names) is fails and "waveform correlation" not in names


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("decibel", "fails"), [(1.95, False), (2.05, True)])
def test_levels(sign: int, decibel: float, fails: bool) -> None:
    gain = np.float32(10 ** (sign * decibel / 20))
    loud = {"RMS difference", "channel RMS difference"}
    assert hears(stereo(hiss(1)), stereo(hiss(1) * gain)) == (loud if fails else set())
    one = hears(stereo(hiss(1)), stereo(hiss(1), hiss(1) * gain))
    assert one == ({"channel RMS difference", "balance difference"} if fails else set())


@pytest.mark.parametrize(("decibel", "fails"), [(0.97, False), (1.03, True)])
def test_balance(decibel: float, fails: bool) -> None:
    """One channel up and the other down by as much: twice that of balance, neither by 2 dB."""
    up, down = (np.float32(10 ** (sign * decibel / 20)) for sign in (1, -1))
    names = hears(stereo(hiss(1)), stereo(hiss(1) * up, hiss(1) * down))
    assert names == ({"balance difference"} if fails else set())


@pytest.mark.parametrize(("seconds", "fails"), [(0.099, False), (0.101, True)])
def test_duration(seconds: float, fails: bool) -> None:
    names = hears(stereo(hiss(1)), stereo(hiss(1)[: -round(seconds * RATE)]))
    assert names == ({"duration difference"} if fails else set())


@pytest.mark.parametrize(("milliseconds", "fails"), [(50, False), (51, True), (-50, False), (-51, True)])
def test_alignment_reaches_fifty_milliseconds(milliseconds: int, fails: bool) -> None:
    late = np.roll(hiss(1), milliseconds * RATE // 1000)
    assert ("waveform correlation" in hears(stereo(hiss(1)), stereo(late))) is fails


def test_spectral_similarity() -> None:
    """Sixty tones, and as many without the last ones as are still, and no longer, 0.95 alike."""
    first = np.cumsum([tones((200.0 + 120 * k, 0.01)) for k in range(60)], axis=0)  # of so many tones and one
    few, many = 0, 30  # of lost tones: 1 alike, and far from it
    while many - few > 1:
        lost = (few + many) // 2
        alike = spectral_similarity(first[-1], first[-1 - lost]) > 0.95
        few, many = (lost, many) if alike else (few, lost)
    for lost, fails in ((few, False), (many, True)):
        names = hears(stereo(first[-1]), stereo(first[-1 - lost]))
        assert ("spectral similarity" in names) is fails


@pytest.mark.parametrize(("depth", "alike"), [(-61.0, True), (-50.0, False)])
def test_bins_sixty_decibel_under_the_loudest_count_as_empty(depth: float, alike: bool) -> None:
    loud, faint = tones((1000, 0.5)), tones((5000, 0.5 * 10 ** (depth / 20)))
    assert (spectral_similarity(loud, loud + faint) > 0.9999) is alike


@pytest.mark.parametrize(("decibel", "value"), [(-80.1, 1.0), (-79.9, 0.0)])
def test_two_channels_under_80_dbfs_agree(decibel: float, value: float) -> None:
    """Two tones have nothing in common; as silences they do."""
    amplitude = np.sqrt(2) * 10 ** (decibel / 20)
    a, b = tones((500, amplitude)), tones((700, amplitude))
    assert level_dbfs(a) == pytest.approx(decibel, abs=0.01)
    assert correlation(a, b) == pytest.approx(value, abs=1e-3)


def alone(sound: Array, seconds: float = 2.0) -> set[str]:
    return failed(check_audio(stereo(sound), RATE, seconds, limits=AudioLimits()))


@pytest.mark.parametrize(("decibel", "names"), [(-69.9, set()), (-70.1, {"level"})])
def test_quieter_than_minus_70_dbfs_is_silence(decibel: float, names: set[str]) -> None:
    assert alone(tones((500, np.sqrt(2) * 10 ** (decibel / 20)))) == names


@pytest.mark.parametrize(("count", "names"), [(32, set()), (33, {"clipped share"})])
def test_one_sample_in_a_thousand_may_clip(count: int, names: set[str]) -> None:
    sound = hiss(1)
    sound[100 : 100 + count] = 1.0
    assert alone(sound) == names


@pytest.mark.parametrize(("level", "run", "share"), [(0.9991, 3, 0.03), (0.9989, 3, 0.0), (0.9991, 2, 0.0)])
def test_what_counts_as_clipped(level: float, run: int, share: float) -> None:
    peaks = np.zeros((1, 100), np.float32)
    peaks[0, 50 : 50 + run] = level
    assert clipped_share(peaks) == pytest.approx(share)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("seconds", "names"), [(0.24, set()), (0.26, {"audio/video drift"})])
def test_drift(sign: int, seconds: float, names: set[str]) -> None:
    assert alone(hiss(1), 2.0 + sign * seconds) == names
