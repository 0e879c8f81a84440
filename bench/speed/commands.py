"""`h3serve bench`: this build's speed on this machine, with random weights of the released sizes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3serve.cli.console import say
from h3serve.core.errors import RequestError

if TYPE_CHECKING:
    from bench.report import Report

app = typer.Typer(
    help="Measure this build on this machine: random weights of the released sizes.", no_args_is_help=True
)

Seconds = Annotated[float, typer.Option(help="Length of the clip.")]
ShortEdge = Annotated[int, typer.Option(help="Short edge of the canvas in pixels.")]
Rounds = Annotated[int, typer.Option(help="Timed runs of each, in turn.")]
Out = Annotated[Path | None, typer.Option(help="Also write OUT.md and OUT.json.", show_default=False)]
Tiers = Annotated[
    str,
    typer.Option(
        help="Tiers to compare, separated by commas; TIER-plain: without optional packages, TIER-fp8: on 8-bit layers."
    ),
]
Peer = Annotated[
    Path | None,
    typer.Option(help="A Python file that builds another implementation: bench/diffusers_peer.py.", show_default=False),
]
POINTS = "512:4,768:4,768:6,768:8,768:10"
PROMPT = "A red fox trots through a snowy forest while the wind rises and snow crunches underfoot. " * 6


@app.command()
def step(
    seconds: Seconds = 5.0,
    short_edge: ShortEdge = 768,
    text_tokens: Annotated[int, typer.Option(help="Text rows.")] = 300,
    tiers: Tiers = "exact,lossless-plain,lossless,fast",
    rounds: Rounds = 3,
    peer: Peer = None,
    out: Out = None,
) -> None:
    """One evaluation of the transformer."""
    from bench.speed import transformer_step

    other = _load(peer)
    with _inference():
        denoiser = _component("transformer")
        chosen = tiers.split(",")
        target = {"short_edge": short_edge, "duration_seconds": seconds}
        _show(
            transformer_step.bench_step(
                denoiser,
                chosen,
                target=target,
                text_tokens=text_tokens,
                rounds=rounds,
                peer=other and other.transformer,
            ),
            out,
        )


@app.command()
def growth(
    points: Annotated[str, typer.Option(help="EDGE:SECONDS pairs, separated by commas, the shortest first.")] = POINTS,
    tier: Annotated[str, typer.Option(help="Tier.")] = "lossless",
    text_tokens: Annotated[int, typer.Option(help="Text rows.")] = 300,
    rounds: Rounds = 1,
    out: Out = None,
) -> None:
    """Seconds of an evaluation against its rows, and the cost formula's curve through them."""
    from bench.speed.growth_command import bench_growth, read_points

    lengths = read_points(points)
    with _inference():
        denoiser = _component("transformer")
        _show(bench_growth(denoiser, tier, points=lengths, text_tokens=text_tokens, rounds=rounds), out)


@app.command()
def error(
    seconds: Seconds = 5.0,
    text_tokens: Annotated[int, typer.Option(help="Text rows.")] = 300,
    tiers: Tiers = "exact,lossless,fast",
    peer: Peer = None,
    out: Out = None,
) -> None:
    """Distance from float32: one block at full size, and all of them on a small canvas."""
    from bench.speed import transformer_step

    other = _load(peer)
    with _inference():
        denoiser = _component("transformer")
        chosen = tiers.split(",")
        target = {"short_edge": 768, "duration_seconds": seconds}
        _show(transformer_step.bench_block_error(denoiser, chosen, target=target, text_tokens=text_tokens), out)
        small = {"short_edge": 256, "duration_seconds": seconds}
        theirs = other and other.transformer
        _show(
            transformer_step.bench_step_error(denoiser, chosen, target=small, text_tokens=text_tokens, peer=theirs),
            out,
        )


@app.command()
def vae(
    seconds: Seconds = 5.0, short_edge: ShortEdge = 768, rounds: Rounds = 3, peer: Peer = None, out: Out = None
) -> None:
    """The video VAE, both directions."""
    from bench.speed import video_vae

    other = _load(peer)
    with _inference():
        network = _component("video_vae")
        target = {"short_edge": short_edge, "duration_seconds": seconds}
        for measure in (video_vae.bench_decode, video_vae.bench_encode):
            report = measure(
                network,
                target=target,
                rounds=rounds,
                peer=other and other.video_vae,
            )
            _show(report, out)
        for measure_error in (video_vae.decode_errors, video_vae.encode_errors):
            _show(measure_error(network), out)


@app.command()
def text(
    lengths: Annotated[str, typer.Option(help="Tokens, separated by commas.")] = "300,2000,8000",
    rounds: Rounds = 3,
    out: Out = None,
) -> None:
    """The text encoder."""
    from bench.speed.text_encoder import bench_text

    with _inference():
        encoder = _component("text_encoder")
        _show(bench_text(encoder, lengths=[int(length) for length in lengths.split(",")], rounds=rounds), out)


@app.command()
def request(
    seconds: Seconds = 5.0,
    short_edge: ShortEdge = 768,
    evaluations: Annotated[int, typer.Option(help="Model evaluations.")] = 50,
    quality: Annotated[str, typer.Option(help="exact, lossless or fast.")] = "lossless",
    video: Annotated[Path, typer.Option(help="Where the MP4 goes.")] = Path("bench.mp4"),
    out: Out = None,
) -> None:
    """A whole request, from its text to the finished MP4."""
    import torch

    from bench.speed.whole_request import bench_request
    from bench.synthetic_engine import synthetic_engine

    _check_gpu()
    chosen: Any = quality
    engine = synthetic_engine(torch.device("cuda", 0), quality=chosen)
    target = {"short_edge": short_edge, "duration_seconds": seconds}
    report = bench_request(engine, target=target, evaluations=evaluations, prompt=PROMPT, output=video)
    _show(report, out)


@app.command()
def plot(
    results: Annotated[Path, typer.Argument(help="JSON of measurements, as --out writes it.")],
    out: Annotated[Path, typer.Option(help="The SVG.")],
    series: Annotated[
        str, typer.Option(help="What is shown, separated by commas; NAME=LABEL gives another name.")
    ] = "peer,lossless-plain,lossless,fast",
    title: Annotated[str, typer.Option(help="Above the plot.")] = "Seconds of one evaluation",
) -> None:
    """Measured steps as a picture: seconds against rows."""
    from bench.speed.plot import draw, parse_names, read_series
    from h3serve.media.write.outputs import replacing

    picture = draw(read_series(results, parse_names(series)), title)
    with replacing(out) as part:
        part.write_text(picture)
    say(str(out))


def _inference() -> Any:
    import torch

    return torch.inference_mode()


def _component(name: str) -> Any:
    from bench.synthetic_weights import synthetic_component

    _check_gpu()
    return synthetic_component(name, device="cuda")


def _check_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise RequestError("device", "cpu", "networks of the released sizes are measured on a GPU")


def _load(peer: Path | None) -> Any:
    if peer is None:
        return None
    spec = importlib.util.spec_from_file_location("peer", peer)
    if spec is None or spec.loader is None or not peer.is_file():
        raise RequestError("peer", str(peer), "a Python file such as bench/diffusers_peer.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _show(report: Report, out: Path | None) -> None:
    say(report.markdown())
    if out is not None:
        report.write(out)
