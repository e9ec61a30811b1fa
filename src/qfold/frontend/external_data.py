"""Reads weights that a model keeps outside of its file, and nothing else outside of the model's directory."""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath

from onnx import TensorProto

from qfold.frontend.errors import FrontendError


def _number(text: str, key: str, what: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise FrontendError(f"{what}: external data has {key} '{text}', which is not a byte count")
    return value


def confined(location: str, directory: Path, what: str) -> Path:
    """The file at `location` relative to `directory`, which it may not leave by `..`, absolute paths or links."""
    if (
        not location
        or "\0" in location
        or PurePosixPath(location).is_absolute()
        or PureWindowsPath(location).drive
        or PureWindowsPath(location).root
    ):
        raise FrontendError(
            f"{what}: external data location {location!r} is not a path relative to the model"
        )
    root = directory.resolve()
    path = (root / location).resolve()
    if not path.is_relative_to(root):
        raise FrontendError(
            f"{what}: external data location {location!r} leads out of the model's directory"
        )
    if not path.exists():
        raise FrontendError(f"{what}: external data file {location!r} is missing from {directory}")
    if not path.is_file():
        raise FrontendError(f"{what}: external data {location!r} is not a regular file")
    return path


def read_external(tensor: TensorProto, what: str, size: int, directory: Path | None) -> bytes:
    """The `size` bytes that the external tensor `tensor` refers to; `FrontendError` if they are not there."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if "location" not in entries:
        raise FrontendError(f"{what}: external data has no location")
    if directory is None:
        raise FrontendError(
            f"{what} is stored in the file {entries['location']!r}, but the model was not read from a "
            "file: give the directory that holds it"
        )
    path = confined(entries["location"], directory, what)
    offset = _number(entries.get("offset", "0"), "offset", what)
    length = _number(entries["length"], "length", what) if "length" in entries else size
    if length != size:
        raise FrontendError(f"{what} takes {size} bytes, but its external data declares {length}")
    try:
        with path.open("rb") as source:
            available = source.seek(0, 2)
            if offset + size > available:
                raise FrontendError(
                    f"{what}: external data takes bytes {offset}..{offset + size} of "
                    f"{entries['location']!r}, which has {available}"
                )
            source.seek(offset)
            return source.read(size)
    except OSError as error:
        raise FrontendError(
            f"{what}: external data file {entries['location']!r} cannot be read: {error.strerror}"
        ) from error
