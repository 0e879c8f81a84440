"""`h3serve submit | watch | list | download | cancel`: the videos of a server, from another process or machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from h3serve.cli.console import progress_display, say
from h3serve.cli.options import with_options
from h3serve.cli.request_flags import RequestFile, RequestFlags, build_request
from h3serve.core.errors import H3Error, RequestError

if TYPE_CHECKING:  # it brings httpx
    from h3serve.client import Client, Video

Url = Annotated[str, typer.Option(envvar="H3SERVE_URL", help="The server.")]
KeyFile = Annotated[Path | None, typer.Option(help="File that holds an API key.")]
VideoId = Annotated[str, typer.Argument(help="A video's id.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")]
URL = "http://127.0.0.1:8000"
PATIENCE_S = 20.0  # without a sign of the server


class _Shown(NamedTuple):
    stage: str
    step: int
    steps: int
    seconds_left: float | None


@with_options()
def submit(
    *,
    request_file: RequestFile = None,
    flags: RequestFlags,
    url: Url = URL,
    key_file: KeyFile = None,
    out: Annotated[Path | None, typer.Option(help="Wait, and write the MP4 here; else its id is all.")] = None,
    priority: Annotated[int, typer.Option(help="Higher goes first.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Send a video to a server; media that are files here are sent along."""
    request = build_request(request_file, flags)
    with _client(url, key_file) as client:
        video = client.create(request, priority=priority)
        say(video.id)
        if out is not None:
            _finished(client, video.id, quiet=quiet)
            client.download(video.id, out)


def watch(video_id: VideoId, url: Url = URL, key_file: KeyFile = None, quiet: Quiet = False) -> None:
    """Follow a video until it has ended; exit code 1 if it failed."""
    with _client(url, key_file) as client:
        say(_finished(client, video_id, quiet=quiet).status)


def list_(
    url: Url = URL,
    key_file: KeyFile = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="At most so many, newest first.")] = 20,
) -> None:
    """Show the newest videos of a server: id, state, progress, size and prompt."""
    with _client(url, key_file) as client:
        for video in client.videos(limit=limit):
            prompt = " ".join(str(video.body.get("prompt")).split())
            say(f"{video.id}  {video.status:11}  {video.progress:3} %  {video.body.get('size')}  {prompt[:60]}")


def download(
    video_id: VideoId,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("out.mp4"),
    variant: Annotated[str, typer.Option(help="video, audio or thumbnail.")] = "video",
    url: Url = URL,
    key_file: KeyFile = None,
) -> None:
    """Write a finished video's file; broken off, it goes on with the bytes that are missing."""
    with _client(url, key_file) as client:
        say(str(client.download(video_id, out, variant=variant)))


def cancel(video_id: VideoId, url: Url = URL, key_file: KeyFile = None) -> None:
    """Cancel a video: at once while it waits, within a step while it runs."""
    with _client(url, key_file) as client:
        say(client.cancel(video_id).status)


def _client(url: str, key_file: Path | None) -> Client:
    from h3serve.client import Client

    try:
        key = None if key_file is None else key_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError("--key-file", str(key_file), f"a readable file ({error})") from None
    return Client(url, key=key, patience=PATIENCE_S)


def _finished(client: Client, video_id: str, *, quiet: bool) -> Video:
    """The video when it is completed; H3Error says how else it ended."""
    with progress_display() as display:
        for video in client.watch(video_id):
            if not quiet:
                stage = video.stage or video.status
                display(_Shown(stage, video.step or 0, video.steps or 0, video.seconds_left))
    if video.status != "completed":
        raise H3Error(f"video {video_id} {video.status}" + (f": {video.error}" if video.error else ""))
    return video
