"""The unmodified openai client against a whole server."""

import io
from pathlib import Path

import httpx
import pytest
from PIL import Image

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
openai = pytest.importorskip("openai")


def test_create_poll_list_download_delete(http: httpx.Client, tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "teal").save(file, "png")
    client = openai.OpenAI(api_key="none", base_url=f"{http.base_url}/v1", max_retries=0)
    video = client.videos.create_and_poll(prompt="a lion", poll_interval_ms=20)
    assert video.status == "completed" and video.seconds == "4" and video.size == "1344x768"
    framed = client.videos.create(
        prompt="from a picture", seconds="8", size="1280x720", input_reference=("a.png", file.getvalue())
    )
    assert client.videos.poll(framed.id, poll_interval_ms=20).status == "completed"
    assert [v.id for v in client.videos.list(limit=1)][:2] == [framed.id, video.id]
    assert client.videos.retrieve(framed.id).model == "fake"
    data = client.videos.download_content(video.id)
    data.write_to_file(tmp_path / "out.mp4")
    assert (tmp_path / "out.mp4").read_bytes()[4:8] == b"ftyp"
    thumbnail = client.videos.download_content(video.id, variant="thumbnail").read()
    assert Image.open(io.BytesIO(thumbnail)).format == "JPEG"
    assert client.videos.delete(video.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.videos.retrieve(video.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.videos.create(prompt="a", seconds="99")
    assert caught.value.param == "seconds" and "4 to 15" in str(caught.value)
    with pytest.raises(openai.NotFoundError) as missing:
        client.videos.create(prompt="a", model="sora-2")
    assert missing.value.code == "model_not_found"
