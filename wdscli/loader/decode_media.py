"""Payloads that are sound or film, by packages that a user installs: soundfile and PyAV.

What it is: handlers by the names of :data:`MEDIA`, and webdataset's ``torch_audio`` and ``torch_video``.

* ``"audio"``: (float32 from -1 to 1 of shape (channels, frames), frames per second), as numpy array; ``"torch_audio"``
  as tensor. soundfile for ``flac mp3 ogg wav``, PyAV for ``aac m4a opus wma``.
* ``"video"``: (uint8 of shape (frames, height, width, 3), float32 of shape (channels, frames of sound), info), where
  info has ``video_fps`` and, with sound, ``audio_fps``; ``"torch_video"`` the same as tensors, which is what
  torchvision's ``read_video`` gave. By PyAV.

How: from memory, no file is written. The container is the one that the extension names: were ffmpeg left to find it
out, a playlist in a payload could make it open other files and addresses. It must not know of samples.
"""

from __future__ import annotations

import io
from functools import partial
from typing import Any

from wdscli.errors import DataError
from wdscli.loader.decode_parts import ByExtension, Decode, needed

SOUNDFILE = frozenset({"flac", "mp3", "ogg", "wav"})
AV_SOUND = {"aac": "aac", "m4a": "mp4", "opus": "ogg", "wma": "asf"}
FILM = {
    "avi": "avi",
    "h264": "h264",
    "mjpeg": "mjpeg",
    "mkv": "matroska",
    "mov": "mov",
    "mp4": "mp4",
    "mpg": "mpeg",
    "ogv": "ogg",
    "webm": "webm",
    "wmv": "asf",
}


class Audio(ByExtension):
    """Sound, as numpy arrays or as tensors."""

    def __init__(self, torch: bool) -> None:
        self._torch = torch

    def find(self, extension: str) -> Decode | None:
        if extension in SOUNDFILE:
            return self._by_soundfile
        return partial(self._by_av, AV_SOUND[extension]) if extension in AV_SOUND else None

    def _by_soundfile(self, data: bytes) -> tuple[Any, int]:
        soundfile = needed("soundfile", "audio", "soundfile")
        samples, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
        return _as_wanted(samples.T, self._torch), int(rate)

    def _by_av(self, container: str, data: bytes) -> tuple[Any, int]:
        samples, rate = _sound(needed("av", "audio", "av"), container, data)
        if rate is None:
            raise DataError("no sound in it")
        return _as_wanted(samples, self._torch), rate


class Video(ByExtension):
    """Film, as numpy arrays or as tensors."""

    def __init__(self, torch: bool) -> None:
        self._torch = torch

    def find(self, extension: str) -> Decode | None:
        return partial(self._film, FILM[extension]) if extension in FILM else None

    def _film(self, container: str, data: bytes) -> tuple[Any, Any, dict[str, float]]:
        av = needed("av", "video", "av")
        frames, fps = _pictures(av, container, data)
        sound, rate = _sound(av, container, data)
        info: dict[str, float] = {"video_fps": fps}
        if rate is not None:
            info["audio_fps"] = rate
        return _as_wanted(frames, self._torch), _as_wanted(sound, self._torch), info


def _as_wanted(array: Any, torch: bool) -> Any:
    import numpy

    array = numpy.ascontiguousarray(array)
    return needed("torch", "tensors of audio and video", "torch").from_numpy(array) if torch else array


def _pictures(av: Any, container: str, data: bytes) -> tuple[Any, float]:
    import numpy

    with av.open(io.BytesIO(data), format=container) as film:
        if not film.streams.video:
            raise DataError("no pictures in it")
        frames = [frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)]
        rate = film.streams.video[0].average_rate
    if not frames:
        raise DataError("no pictures in it")
    return numpy.stack(frames), float(rate or 0)


def _sound(av: Any, container: str, data: bytes) -> tuple[Any, int | None]:
    """((channels, frames), frames per second); nothing and None where there is no sound."""
    import numpy

    with av.open(io.BytesIO(data), format=container) as film:
        if not film.streams.audio:
            return numpy.zeros((1, 0), numpy.float32), None
        planes = av.AudioResampler(format="fltp")
        parts = [part.to_ndarray() for frame in film.decode(audio=0) for part in planes.resample(frame)]
        parts += [part.to_ndarray() for part in planes.resample(None)]
        rate = int(film.streams.audio[0].rate)
    return (numpy.concatenate(parts, axis=1) if parts else numpy.zeros((1, 0), numpy.float32)), rate


torch_audio = Audio(torch=True)
torch_video = Video(torch=True)
MEDIA: dict[str, ByExtension] = {
    "audio": Audio(torch=False),
    "torch_audio": torch_audio,
    "torch_video": torch_video,
    "video": Video(torch=False),
}
