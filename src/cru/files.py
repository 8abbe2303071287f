"""Atomic writes of files, also with respect to crashes, and reads with a limit on the size.

A file is written under a random name, flushed to the disk, and renamed. A folder of several files has one index file.
The index names the other files by their content, so a new index replaces the complete folder at once.
"""

import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

fcntl: Any = import_module("fcntl") if os.name == "posix" else None  # Windows has no flock
MOST_TEXT, MOST_DATA = 1 << 28, 1 << 34  # bytes that a reader accepts: 256 MiB of JSON, 16 GiB of arrays
_TEMPORARY = re.compile(r"\.cru-[0-9a-f]{16}\.tmp")
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS)

Writer = Callable[[BinaryIO], None]


def write_atomically(path: Path, content: bytes) -> None:
    """Write all of ``content``, or leave the file unchanged."""
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file. At the end it replaces ``path``. After an error, ``path`` is unchanged."""
    make_folder(path.parent)
    remove_leftovers(path.parent)
    with _new_file(path.parent) as (file, temporary):
        yield file
        _finish(file, temporary, path)


def write_folder(
    folder: Path, index: str, parts: Mapping[str, Writer | None], make_index: Callable[[dict[str, str]], bytes]
) -> None:
    """Replace all files of a folder in one atomic step.

    The step is the rename of the file ``index``. Before it, every part is on the disk under a name made of its content.
    After it, the parts of the older version are removed.

    Args:
        folder: the folder of the files. Other files in it do not change.
        index: the name of the file that lists the checksums of the parts.
        parts: the function that writes each part. None removes a part of the older version.
        make_index: the function that makes the content of the index from {name of a part: SHA-256}.
    """
    make_folder(folder)
    with locked(folder):
        remove_leftovers(folder)
        before = {path.name for path in folder.iterdir()}
        checksums: dict[str, str] = {}
        try:
            for name, write in parts.items():
                if write is not None:
                    with _new_file(folder) as (file, temporary):
                        write(file)
                        checksums[name] = file_checksum(file)
                        _finish(file, temporary, folder / part_name(name, checksums[name]))
            write_atomically(folder / index, make_index(checksums))
        except Exception:  # the older version remains, without the new parts
            _remove_parts(folder, parts, before)
            raise
        _remove_parts(folder, parts, {part_name(name, checksum) for name, checksum in checksums.items()})


def _remove_parts(folder: Path, parts: Mapping[str, object], kept: set[str]) -> None:
    for path in folder.iterdir():
        if path.name not in kept and is_part(path.name, parts):
            path.unlink(missing_ok=True)


def part_name(name: str, checksum: str) -> str:
    """Name a part of a folder by its content.

    >>> from cru.files import part_name
    >>> part_name("model.safetensors", "0123456789abcdef" * 4)
    'model-0123456789abcdef.safetensors'
    """
    stem, dot, suffix = name.partition(".")
    return f"{stem}-{checksum[:16]}{dot}{suffix}"


def is_part(name: str, parts: Mapping[str, object]) -> bool:
    """Return whether a file name belongs to any version of one of the ``parts``."""
    found = re.fullmatch(r"(.+)-[0-9a-f]{16}(\..+)", name)
    return found is not None and found[1] + found[2] in parts


def is_temporary(name: str) -> bool:
    """Return whether a file name is that of a temporary file of this module."""
    return _TEMPORARY.fullmatch(name) is not None


@contextmanager
def open_part(folder: Path, name: str, checksum: str, most: int = MOST_DATA) -> Iterator[BinaryIO]:
    """Open a part of a folder from `write_folder`, and check its content first.

    Args:
        folder: the folder.
        name: the name of the part.
        checksum: the SHA-256 of the part.
        most: the largest size in bytes.

    Raises:
        FileNotFoundError: the part is missing.
        ValueError: the content is altered, or the file is too large or not a regular file.
    """
    path = folder / part_name(name, checksum)
    try:
        with open_regular(path, most) as file:
            if file_checksum(file) != checksum:
                raise ValueError(f"{path} was altered or damaged after it was saved: its checksum differs.")
            yield file
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} is not complete: there is no {path.name}.") from None


@contextmanager
def open_regular(path: Path, most: int = MOST_DATA) -> Iterator[BinaryIO]:
    """Open a regular file of at most ``most`` bytes without blocking.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is a link, a pipe or a device, or it is too large.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | _NO_LINK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError(f"{path} must be a regular file, not a link.") from None
        raise
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{path} must be a regular file.")
        if found.st_size > most:
            raise ValueError(f"{path} must have at most {most:,} bytes, got {found.st_size:,}.")
        yield file


def read_bounded(path: Path, most: int = MOST_DATA) -> bytes:
    """Read a regular file of at most ``most`` bytes."""
    with open_regular(path, most) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, and flush their entries to the disk."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        _flush_folder(path.parent)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder for one writer. The operating system releases the lock when the process ends."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of writers that have crashed. A running writer has a lock on its file."""
    for path in folder.iterdir():
        if not is_temporary(path.name):
            continue
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | _NO_LINK)
            try:
                if fcntl is not None:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
            finally:
                os.close(descriptor)


@contextmanager
def _new_file(folder: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """Make a file with a random name. It is locked while it is open, and removed on an error."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | _NO_LINK
    while True:
        path = folder / f".cru-{secrets.token_hex(8)}.tmp"
        descriptor = os.open(path, flags, 0o666)
        _lock(descriptor)
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)  # another process removed it as a leftover before it was locked
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file, path
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _finish(file: BinaryIO, temporary: Path, path: Path) -> None:
    """Flush the file to the disk, rename it, and flush the rename."""
    file.flush()
    os.fsync(file.fileno())
    os.replace(temporary, path)  # noqa: PTH105 - tests replace these calls
    _flush_folder(path.parent)


def sha256(parts: Iterable[bytes | memoryview]) -> str:
    """Compute the checksum of the concatenation of ``parts``."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def file_checksum(file: BinaryIO) -> str:
    """Compute the SHA-256 of a complete file, and seek to its start."""
    file.seek(0)
    found = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    file.seek(0)
    return found


def _flush_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Wait for the lock of a file. Do nothing on network disks without locks."""
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
