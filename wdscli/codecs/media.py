"""This module decodes sound and film, with the optional packages soundfile and PyAV.

:data:`MEDIA` has the handlers by name. ``torch_audio`` and ``torch_video`` are names of webdataset.

* ``"audio"`` returns a pair: a numpy array of float32 from -1 to 1 of shape (channels, frames), and the frames per
  second. ``"torch_audio"`` returns a tensor instead of the array. soundfile decodes ``flac mp3 ogg wav``, PyAV decodes
  ``aac m4a opus wma``.
* ``"video"`` returns three values: the pictures, a numpy array of uint8 of shape (frames, height, width, 3); the sound,
  an array of float32 of shape (channels, frames of sound); and a dict with ``video_fps`` and, if there is sound,
  ``audio_fps``. ``"torch_video"`` returns tensors instead of arrays, like torchvision's ``read_video``. PyAV decodes
  video.

Payloads are decoded in memory, and no file is written. The field's extension decides the container. If FFmpeg guessed
the container, a playlist in a payload could make FFmpeg open other files and addresses. Both packages decode what is
there of a payload that was cut off, so the containers are checked first (:mod:`~wdscli.codecs.headers`).
:func:`check_media` checks a payload without keeping what it decodes. This module does not know samples.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from itertools import chain
from typing import Any

from wdscli.arrays import numpy
from wdscli.codecs.handlers import ByExtension, Decode, check_size, needed
from wdscli.codecs.headers import check_container, wave_of
from wdscli.codecs.kinds import KINDS, names_of
from wdscli.errors import DataError

SOUNDFILE = frozenset(name for name in names_of("audio") if not KINDS[name].container)
AV_SOUND = {name: KINDS[name].container for name in names_of("audio") - SOUNDFILE}
FILM = {name: KINDS[name].container or name for name in names_of("video")}
_BLOCK_FRAMES = 1 << 16


def _by_soundfile(data: bytes, torch: bool, limit: int) -> tuple[Any, int]:
    soundfile = needed("soundfile", "audio", "soundfile")
    _check_known(data)
    with soundfile.SoundFile(io.BytesIO(data)) as sound:
        check_size(sound.frames * sound.channels * 4, limit)
        samples, rate = sound.read(dtype="float32", always_2d=True), sound.samplerate
        _check_frames(sound, len(samples))
    return _finished(samples.T, torch), int(rate)


def _check_known(data: bytes) -> bool:
    """Return whether the container of a sound or film is known. Raises DataError if it is damaged or cut off."""
    try:
        return check_container(data)
    except ValueError as error:
        raise DataError(str(error)) from None


def _check_frames(sound: Any, decoded: int) -> None:
    """Raise DataError if a FLAC has fewer samples than its header states. Other formats estimate their length."""
    if sound.format == "FLAC" and decoded < sound.frames:
        raise DataError(f"only {decoded} of its {sound.frames} samples can be decoded")


def _by_av(data: bytes, container: str, torch: bool, limit: int) -> tuple[Any, int]:
    _check_known(data)
    samples, rate = _sound(needed("av", "audio", "av"), container, data, limit)
    if rate is None:
        raise DataError("it has no sound")
    return _finished(samples, torch), rate


def _film(data: bytes, container: str, torch: bool, limit: int) -> tuple[Any, Any, dict[str, float]]:
    av = needed("av", "video", "av")
    _check_known(data)
    frames, fps = _pictures(av, container, data, limit)
    sound, rate = _sound(av, container, data, limit)
    info: dict[str, float] = {"video_fps": fps}
    if rate is not None:
        info["audio_fps"] = rate
    return _finished(frames, torch), _finished(sound, torch), info


def _finished(array: Any, torch: bool) -> Any:
    array = numpy.ascontiguousarray(array)
    return needed("torch", "tensors of audio and video", "torch").from_numpy(array) if torch else array


def _within(parts: Iterable[Any], limit: int) -> list[Any]:
    """Return the arrays in a list. Raises DataError if the arrays have more than ``limit`` bytes together."""
    kept: list[Any] = []
    total = 0
    for part in parts:
        total += part.nbytes
        check_size(total, limit)
        kept.append(part)
    return kept


def _pictures(av: Any, container: str, data: bytes, limit: int) -> tuple[Any, float]:
    with av.open(io.BytesIO(data), format=container) as film:
        if not film.streams.video:
            raise DataError("it contains no pictures")
        frames = _within((frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)), limit)
        rate = film.streams.video[0].average_rate
    if not frames:
        raise DataError("it contains no pictures")
    return numpy.stack(frames), float(rate or 0)


def _sound(av: Any, container: str, data: bytes, limit: int) -> tuple[Any, int | None]:
    """Return the sound as an array of shape (channels, frames), and its frames per second. Without sound, return an
    empty array and None."""
    with av.open(io.BytesIO(data), format=container) as film:
        if not film.streams.audio:
            return numpy.zeros((1, 0), numpy.float32), None
        planes = av.AudioResampler(format="fltp")
        frames = chain(film.decode(audio=0), (None,))
        parts = _within((part.to_ndarray() for frame in frames for part in planes.resample(frame)), limit)
        rate = int(film.streams.audio[0].rate)
    return (numpy.concatenate(parts, axis=1) if parts else numpy.zeros((1, 0), numpy.float32)), rate


def _audio(torch: bool) -> ByExtension:
    decoders: dict[str, Decode] = {name: partial(_by_soundfile, torch=torch) for name in SOUNDFILE}
    for name, container in AV_SOUND.items():
        decoders[name] = partial(_by_av, container=container, torch=torch)
    return ByExtension(decoders, limited=decoders)


def _video(torch: bool) -> ByExtension:
    decoders = {name: partial(_film, container=container, torch=torch) for name, container in FILM.items()}
    return ByExtension(decoders, limited=decoders)


torch_audio = _audio(torch=True)
torch_video = _video(torch=True)
MEDIA = {
    "audio": _audio(torch=False),
    "torch_audio": torch_audio,
    "torch_video": torch_video,
    "video": _video(torch=False),
}


def check_media(data: bytes, name: str) -> str:
    """Decode a payload of the type ``name`` (sound or film), and keep nothing. Return an empty text, or the name of the
    missing package, if only headers and the lengths in them were checked. Raises DataError, and the package's errors,
    if the payload cannot be decoded."""
    is_known = _check_known(data)
    package = "soundfile" if name in SOUNDFILE else "av"
    if find_spec(package) is not None:
        _decode_all(data, name)
        return ""
    if not is_known:
        raise DataError("it does not begin like a sound or film of a known format")
    wave = wave_of(data)
    return "" if wave is not None and not wave.needs_decoder else package


def _decode_all(data: bytes, name: str) -> None:
    if name in SOUNDFILE:
        soundfile = needed("soundfile", "audio", "soundfile")
        with soundfile.SoundFile(io.BytesIO(data)) as sound:
            _check_frames(sound, sum(map(len, sound.blocks(_BLOCK_FRAMES, dtype="float32"))))
        return
    av = needed("av", "audio and video", "av")
    kind = "audio" if name in AV_SOUND else "video"
    with av.open(io.BytesIO(data), format=AV_SOUND.get(name) or FILM[name]) as film:
        streams = [stream for stream in film.streams if stream.type in ("audio", "video")]
        frames = Counter(packet.stream.type for packet in film.demux(streams) for _ in packet.decode())
    if not frames[kind]:
        raise DataError("it has no sound" if kind == "audio" else "it contains no pictures")
