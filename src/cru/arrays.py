"""A safe reader of .npz files: no array is larger than its file, and nothing is unpickled."""

import io
import math
import os
import zipfile
from typing import BinaryIO

import numpy as np

_MOST_ARRAYS = 64  # in one file
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_arrays(file: BinaryIO) -> dict[str, np.ndarray]:
    """Read all arrays of a file from `numpy.savez`, and check every declared size first.

    Raises:
        ValueError: the file is damaged or compressed, or declares more than it holds.
    """
    size = os.fstat(file.fileno()).st_size
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            names = {entry.filename for entry in entries}
            if len(entries) > _MOST_ARRAYS or len(names) != len(entries):
                raise ValueError("it holds too many arrays")
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise ValueError("it is compressed")
            if sum(entry.file_size for entry in entries) > size:
                raise ValueError("it declares more than it holds")
            return {entry.filename.removesuffix(".npy"): _array(archive.read(entry)) for entry in entries}
    except Exception as error:  # the readers of zip and npy raise many types of errors for manipulated bytes
        words = str(error).splitlines()[0][:100] if str(error) else type(error).__name__
        raise ValueError(f"the file is damaged: {words}") from None


def _array(content: bytes) -> np.ndarray:
    """Read one array of numbers, booleans or text. Its declared size must be that of its content."""
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError("its arrays are of an unknown version")
    shape, by_column, kind = _HEADERS[version](stream)
    if kind.kind not in "biufU" or not kind.isnative or (kind.kind in "biuf" and kind.itemsize > 8):
        raise ValueError(f"it holds values of the type {kind.str[:20]}")
    rest = content[stream.tell() :]
    if min(shape, default=1) < 0 or math.prod(shape) * kind.itemsize != len(rest):
        raise ValueError(f"an array declares the shape {shape} and holds {len(rest)} bytes")
    flat = np.frombuffer(rest, kind) if rest else np.empty(0, kind)
    shaped: np.ndarray = flat.reshape(shape[::-1]).T if by_column else flat.reshape(shape)
    return shaped.copy(order="C")
