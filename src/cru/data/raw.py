"""Raw files: in a folder of the user, or downloaded from the official source."""

import gzip
import os
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from cru.data.cache import cache_dir
from cru.errors import require_extra
from cru.files import file_checksum
from cru.progress import ProgressBar, format_bytes


def data_dir(chosen: Path | str | None) -> Path | None:
    """Return the folder of raw files: ``chosen``, else ``CRU_DATA_DIR``, else None.

    Raises:
        FileNotFoundError: the folder does not exist.
    """
    named = chosen or os.environ.get("CRU_DATA_DIR")
    if named and not Path(named).is_dir():
        raise FileNotFoundError(f"the data folder must exist: there is no folder {named}.")
    return Path(named) if named else None


def find(folder: Path, subfolders: Sequence[str], wanted: Sequence[str]) -> list[Path]:
    """Find the files ``wanted``, all in ``folder`` or all in one of its ``subfolders``. Return [] otherwise."""
    for place in [folder, *(folder / name for name in subfolders)]:
        paths = [place / name for name in wanted]
        if all(path.exists() for path in paths):
            return paths
    return []


def fingerprint(paths: Sequence[Path]) -> list[list[Any]]:
    """Return names, sizes and times of files. They show whether a file has changed since it was read."""
    return [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in paths]


def verify(path: Path, sha256: str) -> Path:
    """Return ``path`` if it is the official file.

    Raises:
        ValueError: its checksum differs.
    """
    found = _checksum(path)
    if found != sha256:
        raise ValueError(
            f"{path} must be the official file, but its sha256 is {found[:12]}... instead of {sha256[:12]}...: "
            "it is damaged or altered. Download it again."
        )
    return path


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Convert the errors of gzip and tar about a damaged archive to one sentence.

    Raises:
        ValueError: the archive is truncated or damaged.
    """
    try:
        yield
    except (EOFError, zlib.error, tarfile.TarError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} must be a complete gzip archive, but it is truncated or damaged: {error}.") from None


def members(path: Path, suffix: str) -> Iterator[tuple[str, bytes]]:
    """Iterate once over the files of a gzipped tar archive whose names end in ``suffix``: name and content."""
    with readable(path), gzip.open(path) as stream:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.name.endswith(suffix) else None
                if file is not None:
                    yield member.name, file.read()
        while stream.read(1 << 20):  # tar stops before the end of gzip, where the checksum is
            pass


def download(
    base_url: str, files: dict[str, str | None], subfolder: str, *, cache: Path | str | None, progress: bool
) -> list[Path]:
    """Download files into the cache, unless they are there already.

    Args:
        base_url: the address of the folder of the files.
        files: the SHA-256 of each file by its name. None: the file has no fixed checksum, because it changes daily.
        subfolder: the folder in the cache.
        cache: the cache folder; see `cru.data.cache.cache_dir`.
        progress: whether to show a bar.

    Returns:
        The paths of the files.

    Raises:
        OSError: the server cannot be reached.
        ValueError: a file has another checksum.
        MissingExtraError: requests is not installed.
    """
    folder = cache_dir(cache) / "raw" / subfolder
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):  # another process waits, and then finds the files
        return [_fetch(base_url, name, sha256, folder, progress=progress) for name, sha256 in files.items()]


def _fetch(base_url: str, name: str, sha256: str | None, folder: Path, *, progress: bool) -> Path:
    path, part = folder / name, folder / f"{name}.part"
    if path.exists() and (sha256 is None or _checksum(path) == sha256):
        return path
    requests = require_extra("requests", "experiments")
    if sha256 is None:
        part.unlink(missing_ok=True)
    try:
        _receive(base_url + name, part, progress=progress)
    except requests.RequestException as error:
        reason = type(error).__name__
        if error.response is not None:
            reason = f"the server responds with {error.response.status_code}"
        raise OSError(
            f"cannot download {base_url}{name} ({reason}). Check the connection and run this again, or "
            "download it by hand and set CRU_DATA_DIR, or data_dir, to its folder."
        ) from None
    if sha256 is not None and _checksum(part) != sha256:
        part.unlink()
        raise ValueError(f"{base_url}{name} must have the sha256 {sha256}, but the download has another. Try again.")
    return part.replace(path)


def _receive(url: str, part: Path, *, progress: bool) -> None:
    """Download to the file ``part``, or resume where an interrupted download of the same file stopped."""
    requests = require_extra("requests", "experiments")
    have = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    with requests.get(url, stream=True, timeout=30, headers=headers) as response:
        if response.status_code == requests.codes.range_not_satisfiable:
            return  # the file is complete already
        response.raise_for_status()
        have = have if response.status_code == requests.codes.partial_content else 0
        total = int(response.headers.get("content-length", 0)) + have
        with (
            part.open("ab" if have else "wb") as file,
            ProgressBar(part.stem, total or None, done=have, show=progress, keep=True) as bar,
        ):
            for chunk in response.iter_content(1 << 16):
                file.write(chunk)
                have += len(chunk)
                bar.update(have, format_bytes(have))
    if total and part.stat().st_size < total:
        raise requests.ConnectionError("the connection closed early")


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return file_checksum(file)
