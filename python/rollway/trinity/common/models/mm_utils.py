"""Messages with images and videos, as content parts of the OpenAI API."""

from __future__ import annotations

import base64
import io
import mimetypes
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from rollway.errors import MissingPackage

_MEDIA = {"<image>": "image", "<video>": "video"}


def build_mm_message(prompt: str, images: Sequence[Any], videos: Sequence[Any]) -> dict[str, Any]:
    """Returns a user message whose `<image>` and `<video>` tags are replaced with media.

    Media without a tag come first. Raises `ValueError` if there are more tags than media.
    """
    left = {"image": list(images or []), "video": list(videos or [])}
    parts = list(_parts(prompt, left))
    rest = [{"type": kind, kind: one} for kind, media in left.items() for one in media]
    if not rest and all(part["type"] == "text" for part in parts):
        return {"role": "user", "content": prompt}
    return {"role": "user", "content": rest + parts}


def mm_messages(
    messages: Sequence[dict[str, Any]], images: Sequence[Any], videos: Sequence[Any]
) -> list[dict[str, Any]]:
    """Returns messages whose `<image>` and `<video>` tags are replaced with media in order.

    Raises `ValueError` unless there are as many tags as media.
    """
    left = {"image": list(images or []), "video": list(videos or [])}
    made = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, str) and any(tag in content for tag in _MEDIA):
            message = {**message, "content": list(_parts(content, left))}
        made.append(message)
    for kind, media in left.items():
        if media:
            raise ValueError(f"{len(media)} {kind}s have no <{kind}> tag in the messages")
    return made


def has_multi_modal_content(messages: Sequence[dict[str, Any]]) -> bool:
    """Returns whether a message has a content part that is no text."""
    contents = [one["content"] for one in messages if isinstance(one.get("content"), list)]
    return any(part.get("type", "text") != "text" for parts in contents for part in parts)


def openai_messages(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns messages whose media are parts of the OpenAI API: `image_url` and `video_url`."""
    if not has_multi_modal_content(messages):
        return list(messages)
    made = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            message = {**message, "content": [_openai_part(part) for part in content]}
        made.append(message)
    return made


def _parts(text: str, left: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for segment in re.split("(<image>|<video>)", text):
        kind = _MEDIA.get(segment)
        if kind is None:
            if segment:
                yield {"type": "text", "text": segment}
        elif left[kind]:
            yield {"type": kind, kind: left[kind].pop(0)}
        else:
            raise ValueError(f"the messages have more {segment} tags than there are {kind}s")


def _openai_part(part: dict[str, Any]) -> dict[str, Any]:
    kind = part.get("type")
    if kind not in ("image", "video") or kind not in part:
        return part
    return {"type": f"{kind}_url", f"{kind}_url": {"url": _url(kind, part[kind])}}


def _url(kind: str, media: Any) -> str:
    """Returns the address of an image or video; data become a `data:` address."""
    if isinstance(media, str) and re.match("(https?|data|file):", media):
        return media
    if isinstance(media, (str, os.PathLike)):
        guessed = mimetypes.guess_type(media)[0]
        if guessed is None or not guessed.startswith(f"{kind}/"):
            raise ValueError(f"{os.fspath(media)!r} has no ending of a known {kind} format")
        return _data_url(guessed, pathlib.Path(media).read_bytes())
    if kind == "image" and hasattr(media, "save"):
        return _data_url("image/png", _encoded(media, "PNG"))
    if kind == "video" and getattr(media, "ndim", 0) == 4:
        # Frames, height, width and colours: the form of vLLM for videos as single frames.
        frames = [base64.b64encode(_encoded(_image(one), "JPEG")).decode() for one in media]
        return "data:video/jpeg;base64," + ",".join(frames)
    raise TypeError(
        f"{kind}s are addresses, paths, Pillow images or arrays of frames, "
        f"not {type(media).__name__}"
    )


def _image(frame: Any) -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackage(
            "frames of videos are encoded with Pillow: pip install pillow", package="pillow"
        ) from error
    return Image.fromarray(frame)


def _encoded(image: Any, form: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=form)
    return buffer.getvalue()


def _data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
