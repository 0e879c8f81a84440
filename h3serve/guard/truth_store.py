"""Ground truths on disk. One naming rule: `<platform or common>/<case id>/` with

    facts.json         frame count of the whole clip, and what made it
    frame_0061.png     a compared frame, by its index
    sound.wav          16-bit, 16 kHz, all channels

What a run makes is saved by the same rule, so that accepting it is a copy.
"""

from __future__ import annotations

import io
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError
from pydantic import BaseModel, ConfigDict, ValidationError

from h3serve.core.errors import RequestError
from h3serve.guard.image_metrics import Frame
from h3serve.guard.pcm import Wave, read_pcm, write_wav

COMMON = "common"
FACTS, SOUND = "facts.json", "sound.wav"
RUN_PREFIX = "run-"


class Facts(BaseModel):
    """What is true of the whole clip, of which only some frames are kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    frames: int
    made_with: str  # platform and versions, for the reader


@dataclass(frozen=True)
class Clip:
    """Compared frames uint8 [H,W,3] by index and sound float32 [channels, n] at 16 kHz."""

    facts: Facts
    frames: dict[int, Frame]
    pcm: Wave


@dataclass
class Budget:
    """Bytes that a run may still save."""

    left: int
    left_out: list[str] = field(default_factory=list)

    def takes(self, size: int, name: str) -> bool:
        """True and counted if `size` bytes still fit; otherwise `name` is noted as left out."""
        if size > self.left:
            self.left_out.append(name)
            return False
        self.left -= size
        return True


def find(root: Path, platform: str, case_id: str) -> Path | None:
    """The folder of a case's ground truth: the platform's own, else the common one, else None."""
    candidates = [root / platform / case_id, root / COMMON / case_id]
    return next((folder for folder in candidates if (folder / FACTS).is_file()), None)


def frame_name(index: int) -> str:
    return f"frame_{index:04d}.png"


def load(folder: Path) -> Clip:
    """The clip saved in `folder`; a RequestError naming it if a file is missing or damaged."""
    try:
        facts = Facts.model_validate_json((folder / FACTS).read_text())
        paths = {int(path.stem.removeprefix("frame_")): path for path in sorted(folder.glob("frame_*.png"))}
        frames = {index: np.array(Image.open(path).convert("RGB")) for index, path in paths.items()}
        return Clip(facts, frames, read_pcm(folder / SOUND))
    except (OSError, ValueError, ValidationError, UnidentifiedImageError) as error:
        reason = " ".join(str(error).split())
        raise RequestError("truth", str(folder), f"its files cannot be read: {reason}") from None


def save(clip: Clip, folder: Path, budget: Budget) -> None:
    """Writes `clip` under the official names; files over the budget are left out and noted."""
    folder.mkdir(parents=True, exist_ok=True)
    place = f"{folder.parent.name}/{folder.name}"
    if budget.takes(44 + 2 * clip.pcm.size, f"{place}/{SOUND}"):
        write_wav(folder / SOUND, clip.pcm)
    for index, frame in sorted(clip.frames.items()):
        picture = io.BytesIO()
        Image.fromarray(frame).save(picture, format="PNG", optimize=True)
        if budget.takes(picture.tell(), f"{place}/{frame_name(index)}"):
            (folder / frame_name(index)).write_bytes(picture.getvalue())
    # Last: a folder with facts is a whole one.
    if not any(name.startswith(f"{place}/") for name in budget.left_out):
        (folder / FACTS).write_text(clip.facts.model_dump_json(indent=1) + "\n")


def whole_cases(root: Path) -> list[Path]:
    """Folders `<platform>/<case id>` under `root` that hold a whole clip."""
    return sorted(path.parent for path in root.glob(f"*/*/{FACTS}"))


def copy_case(source: Path, target: Path) -> None:
    """Replaces `target` by the clip in `source`; the old one stays until the new one is whole."""
    fresh = target.with_name(f".{target.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(source, fresh)
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)


def prune(parent: Path, keep: int) -> list[Path]:
    """Removes all but the newest `keep` run folders (named by their time) and returns the removed."""
    runs = sorted(path for path in parent.glob(f"{RUN_PREFIX}*") if path.is_dir())
    old = runs[: max(0, len(runs) - keep)]
    for path in old:
        shutil.rmtree(path)
    return old
