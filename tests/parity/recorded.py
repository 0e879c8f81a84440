"""Names of the requests that were recorded with another implementation."""

CASES = (
    "t2va",
    "fl2va_first",
    "fl2va_last",
    "fl2va_first_last",
    "fl2va_tiled",
    "ref2va_image",
    "ref2va_video_sound",
    "ref2va_video_silent",
    "ref2va_image_audio",
    "ref2va_audio_video_image",
)
