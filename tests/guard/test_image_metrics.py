import math

import av
import numpy as np
import pytest
import torch
from scipy.ndimage import uniform_filter
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

from h3serve.guard.image_metrics import clip_similarity, compare_frames, lag, psnr_db, sample_indices, ssim
from h3serve.guard.thresholds import FrameLimits
from tests.guard.conftest import failed
from tests.guard.encode import decode_frames, encode


def check(source, video, which="ends", **kwargs):
    truth = {i: source[i] for i in sample_indices(len(source), which)}
    return compare_frames(truth, len(source), video, limits=FrameLimits(), **kwargs)


def value(figures, name):
    return next(figure for figure in figures if figure.name == name)


def test_identical_passes(clip):
    figures = check(clip, clip, "all")
    assert not failed(figures)
    assert value(figures, "SSIM").value == pytest.approx(1)
    assert value(figures, "PSNR").value == 100


def test_wrong_content_fails_every_likeness(clip):
    names = failed(check(clip, clip[:, ::-1, ::-1]))
    assert {"SSIM", "PSNR", "mean difference"} <= names


def test_brighter_by_eight_fails_on_brightness_alone(clip):
    assert failed(check(clip, clip + np.uint8(8))) == {"brightness difference"}


def test_one_colour_channel_raised_fails_on_brightness(clip):
    video = clip.copy()
    video[..., 2] += 8
    assert failed(check(clip, video)) == {"brightness difference"}


def test_one_frame_replaced_fails_and_is_named(clip):
    video = clip.copy()
    video[17] = 255 - clip[40]
    figures = check(clip, video, "all")
    assert {"SSIM", "PSNR", "mean difference"} <= failed(figures)
    assert value(figures, "SSIM").where == "frame 17"


@pytest.mark.parametrize("which", ["ends", "all"])
@pytest.mark.parametrize("step", [1, -1])
def test_one_frame_late_or_early_fails_on_lag(clip, which, step):
    video = np.roll(clip, step, axis=0)
    video[0 if step > 0 else -1] = clip[0 if step > 0 else -1]
    figures = check(clip, video, which)
    assert "frame lag" in failed(figures)
    assert value(figures, "frame lag").value == 1


def test_lag_of_a_still_clip_is_zero(clip):
    still = np.repeat(clip[:1], 5, axis=0)
    assert lag(clip[0], still + np.uint8(2), 2) == 0


def test_reencoding_passes(clip, tmp_path):
    encode(tmp_path / "clip.mp4", clip, None)
    figures = check(clip, decode_frames(tmp_path / "clip.mp4"), "all")
    assert not failed(figures), [f.sentence for f in figures]


@pytest.mark.parametrize(
    ("change", "figure"),
    [(lambda c: c[:-1], "frame count difference"), (lambda c: c[:, :-2], "canvas difference")],
)
def test_other_sizes_fail_on_that_alone(clip, change, figure):
    assert failed(check(clip, change(clip))) == {figure}


def test_sampled_indices():
    assert sample_indices(124, "ends") == [0, 62, 123]
    assert sample_indices(1, "ends") == [0]
    assert sample_indices(3, "all") == [0, 1, 2]


def test_ssim_agrees_with_an_independent_computation(clip):
    """The published formula with 7x7 means and sample covariances, by scipy."""
    a, b = clip[0].astype(float), clip[3].astype(float)
    size = (7, 7, 1)
    mean = lambda x: uniform_filter(x, size)[3:-3, 3:-3]  # noqa: E731
    unbiased = 49 / 48
    ma, mb = mean(a), mean(b)
    va, vb = (unbiased * (mean(x * x) - m * m) for x, m in ((a, ma), (b, mb)))
    cov = unbiased * (mean(a * b) - ma * mb)
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    expected = (2 * ma * mb + c1) * (2 * cov + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2))
    assert ssim(clip[0], clip[3]) == pytest.approx(expected.mean(), abs=1e-9)


def test_psnr_agrees_with_ffmpeg(clip):
    graph = av.filter.Graph()
    sources = [graph.add_buffer(width=128, height=96, format="rgb24", time_base="1/24") for _ in "ab"]
    ffmpeg = graph.add("psnr")
    sink = graph.add("buffersink")
    for i, source in enumerate(sources):
        source.link_to(ffmpeg, 0, i)
    ffmpeg.link_to(sink)
    graph.configure()
    for source, picture in zip(sources, (clip[0], clip[1]), strict=True):
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
        frame.pts = 0
        source.push(frame)
        source.push(None)
    measured = float(sink.pull().metadata["lavfi.psnr.psnr_avg"])
    assert math.isclose(psnr_db(clip[0], clip[1]), measured, abs_tol=0.01)


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory):
    """A small CLIP with random weights, laid out as a released one."""
    folder = tmp_path_factory.mktemp("clip")
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 2, "image_size": 32, "patch_size": 8}
    text = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    text |= {"num_attention_heads": 2, "vocab_size": 64}
    torch.manual_seed(0)
    config = CLIPConfig(vision_config=vision, text_config=text, projection_dim=16)
    CLIPModel(config).save_pretrained(folder)
    size = {"shortest_edge": 32}
    CLIPImageProcessor(size=size, crop_size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def test_clip_only_when_named(clip, clip_folder):
    assert "CLIP" not in {figure.name for figure in check(clip, clip)}
    similarity = clip_similarity(clip_folder)
    assert not failed(check(clip, clip, clip=similarity))
    assert similarity(clip[0], 255 - clip[0]) < 0.999
