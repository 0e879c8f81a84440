"""Reference sounds: any file's sound to stereo at 32 kHz (spec/vae_audio.md 6.6).

Samples are placed by their timestamps, so that a click stays where it was: what encoders put before time 0
is dropped, a sound that starts late starts late, and a pause in the timestamps is silence.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from fractions import Fraction
from typing import Any

import av
import numpy as np

from h3serve.media.read.audio_resampler import Wave, resample
from h3serve.media.read.container import audio_stream, open_media, whole_packets
from h3serve.media.read.frame_clock import find_opening
from h3serve.media.sources.media_file import MediaFile

STEREO = 2
SOUNDTRACK_RATE = 44_100  # the release hears the sound of a clip at this rate first
RATES = (1_000, 768_000)

_MISSING_S = 0.1  # may be missing at either end: encoders' frames are this long, container lengths rounded
_SLACK_S = 0.04  # timestamps that are off by less are rounded ones, not gaps
_SEEK_FROM_S = 30  # up to here decoding from the beginning takes no time, and is exact to the sample
_SEEK_MARGIN_S = 2  # decoders need a run-up
# Their timestamps count samples: a gap is where something is lost, never silence.
_NO_CLOCK = {
    *("wav", "w64", "flac", "ogg", "mp3", "aac", "aiff"),
    *("caf", "au", "amr", "ac3", "eac3", "ape", "wv", "tta"),
}


def load_audio(file: MediaFile, seconds: float, *, start_seconds: float = 0.0, soundtrack: bool = False) -> Wave:
    """`seconds` of sound from `start_seconds` on, float32 [2, n] at 32 kHz.

    First int(seconds·rate) samples are taken at the file's rate (a soundtrack's: at 44.1 kHz), then
    resampled, rounding up, as the release does; so n may be one more than seconds·32000. MediaError as
    in `decode_sound`.
    """
    if soundtrack:
        wave, rate = decode_sound(file, seconds, start_seconds=start_seconds, extra_seconds=_MISSING_S)
        wave, rate = _swresample(wave, rate)[:, : int(seconds * SOUNDTRACK_RATE)], SOUNDTRACK_RATE
    else:
        wave, rate = decode_sound(file, seconds, start_seconds=start_seconds)
    return resample(wave, rate)


def decode_sound(
    file: MediaFile, seconds: float, *, start_seconds: float = 0.0, extra_seconds: float = 0.0
) -> tuple[Wave, int]:
    """(float32 [2, int((seconds + extra)·rate)], rate in Hz), the sound as stored from `start_seconds` on.

    One channel is repeated, more than two are mixed down as FFmpeg does. Decoding stops with the last
    sample needed, so that damage after it does not matter; what follows the end of the sound is silence.
    Raises MediaError if there is no sound, if it ends or is damaged before `seconds` are complete (a tenth
    of a second may be missing), or if it passes a limit of `file.limits`.
    """
    start = Fraction(start_seconds)
    line = _decode(file, start, seconds + extra_seconds, seek=True) if start > _SEEK_FROM_S else None
    line = line or _decode(file, start, seconds + extra_seconds, seek=False)
    found = max(0.0, line.end / line.rate) if line else 0.0
    if line is None or found < seconds - _MISSING_S:
        raise file.error(f"its sound ends or is damaged after {found:.2f} of the {seconds:.2f} s needed")
    if not np.isfinite(line.wave).all():
        raise file.error("its sound holds values that are not numbers")
    return line.wave, line.rate


def check_audio(file: MediaFile) -> None:
    """Decode the first frame; raises the MediaError that `decode_sound` would for its rate or channels."""
    with closing(_frames(file, Fraction(0), seek=False)) as frames:
        for _, frame in frames:
            _mix(file, _mixer(frame), frame)
            return


class _Line:
    """The stretch of sound that is wanted; `end` is where the last sample placed on it ends."""

    def __init__(self, rate: int, seconds: float, begin: Fraction) -> None:
        self.rate, self.end = rate, round(begin * rate)
        self.wave = np.zeros((STEREO, int(seconds * rate)), np.float32)

    def place(self, samples: Wave, begin: Fraction) -> None:
        """Put [1 or 2, n] at `begin` seconds, or right after what came before if that is nearly the same."""
        if abs(begin - Fraction(self.end, self.rate)) > _SLACK_S:
            self.end = round(begin * self.rate)
        first, self.end = self.end, self.end + samples.shape[1]
        into = self.wave[:, max(first, 0) : max(self.end, 0)]
        into[:] = samples[:, max(-first, 0) :][:, : into.shape[1]]

    @property
    def is_full(self) -> bool:
        return self.end >= self.wave.shape[1]


def _decode(file: MediaFile, start: Fraction, seconds: float, *, seek: bool) -> _Line | None:
    """The sound from `start` on; None if there was none, or if seeking overshot."""
    line, mixer = None, None
    with closing(_frames(file, start, seek=seek)) as frames:
        for begin, frame in frames:
            if line is None:
                if seek and begin > 0:
                    return None
                line, mixer = _Line(frame.sample_rate, seconds, begin), _mixer(frame)
            for part in _mix(file, mixer, frame):
                line.place(part, begin)
                begin += Fraction(part.shape[1], line.rate)
            if line.is_full:
                break
    return line


def _frames(file: MediaFile, start: Fraction, *, seek: bool) -> Generator[tuple[Fraction, Any], None, None]:
    """(seconds after `start`, decoded frame) up to the first damage; all of one rate and layout."""
    first, decoded_bytes, begin = None, 0, -start
    zero = find_opening(file).zero
    with open_media(file) as box:
        stream = audio_stream(box)
        if stream is None:
            raise file.error("it has no sound that can be decoded")
        if seek:
            box.seek(int((zero + start - _SEEK_MARGIN_S) / stream.time_base), stream=stream)
        settled = zero + max(Fraction(_MISSING_S), start - Fraction(_SEEK_MARGIN_S, 2))
        for frame in _whole_frames(box, stream, settled):
            first = first or _checked(file, frame)
            if _shape(frame) != _shape(first):
                raise file.error("its sound changes its sample rate or channels on the way")
            decoded_bytes += sum(plane.buffer_size for plane in frame.planes)
            if decoded_bytes > file.limits.max_decoded_bytes:
                raise file.error(f"its sound unpacks to more than {file.limits.max_decoded_bytes} bytes")
            if frame.pts is not None:
                stamp = frame.pts * frame.time_base - zero - start
                lost = stamp - begin > _SLACK_S and begin >= settled - zero - start
                if lost and box.format.name in _NO_CLOCK:
                    return
                begin = stamp
            yield begin, frame
            begin += Fraction(frame.samples, frame.sample_rate)


def _whole_frames(box: Any, stream: Any, settled: Fraction) -> Iterator[Any]:
    """Frames up to the first packet that does not decode; before the stream time `settled`, those are skipped."""
    stream.codec_context.options = {"err_detect": "crccheck+explode"}  # noise is worse than a refusal
    for packet in whole_packets(box, [stream]):
        try:
            yield from packet.decode()
        except av.FFmpegError:
            if packet.pts is None or packet.pts * packet.time_base >= settled:
                return
    yield from stream.codec_context.decode(None)


def _checked(file: MediaFile, frame: Any) -> Any:
    low, high = RATES
    if not low <= frame.sample_rate <= high:
        raise file.error(f"its sound has {frame.sample_rate} samples per second, {low} to {high} are taken")
    return frame


def _shape(frame: Any) -> tuple[int, str, str]:
    return frame.sample_rate, frame.layout.name, frame.format.name


def _mixer(frame: Any) -> av.AudioResampler:
    """To float32, and to two channels from more. One or two are taken as they are, whatever they are called."""
    layout = "stereo" if frame.layout.nb_channels > STEREO else frame.layout
    return av.AudioResampler("fltp", layout, frame.sample_rate)


def _mix(file: MediaFile, mixer: av.AudioResampler, frame: Any) -> list[Wave]:
    try:
        return [part.to_ndarray() for part in mixer.resample(frame)]
    except (av.FFmpegError, ValueError) as error:
        raise file.error(f"its channels ({frame.layout.name}) cannot be mixed down to two") from error


def _swresample(wave: Wave, rate: int) -> Wave:
    """FFmpeg's own resampler, from `rate` to the rate of soundtracks."""
    if rate == SOUNDTRACK_RATE or not wave.size:
        return wave
    frame = av.AudioFrame.from_ndarray(wave, "fltp", "stereo")
    frame.sample_rate, frame.time_base, frame.pts = rate, Fraction(1, rate), 0
    resampler = av.AudioResampler("fltp", "stereo", SOUNDTRACK_RATE)
    parts = [*resampler.resample(frame), *resampler.resample(None)]
    return np.concatenate([part.to_ndarray() for part in parts], axis=1)
