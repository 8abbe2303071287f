"""Raw files: found in a folder of the user's, or downloaded from the official source."""

import gzip
import os
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pooch
import requests
from filelock import FileLock

from cru.data.cache import cache_dir


def data_dir(chosen: Path | str | None) -> Path | None:
    """Where the user keeps raw files: ``chosen``, else ``CRU_DATA_DIR``, else nowhere."""
    named = chosen or os.environ.get("CRU_DATA_DIR")
    if named and not Path(named).is_dir():
        raise FileNotFoundError(f"the data folder must exist: there is no folder {named}.")
    return Path(named) if named else None


def find(folder: Path, subfolders: Sequence[str], wanted: Sequence[str]) -> list[Path]:
    """The files ``wanted``, all in ``folder`` or all in one of its ``subfolders``; empty if they are not there."""
    for place in [folder, *(folder / name for name in subfolders)]:
        paths = [place / name for name in wanted]
        if all(path.exists() for path in paths):
            return paths
    return []


def fingerprint(paths: Sequence[Path]) -> list[list[Any]]:
    """Names, sizes and times of files: tells whether they are still the ones that were read."""
    return [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in paths]


def verify(path: Path, sha256: str) -> Path:
    """``path``, if it holds what the official archive holds."""
    found = pooch.file_hash(str(path), alg="sha256")
    if found != sha256:
        raise ValueError(
            f"{path} must be the official file, but its sha256 is {found[:12]}... instead of {sha256[:12]}...: "
            "it is damaged or altered. Download it again."
        )
    return path


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """One sentence for an archive that ends too early or holds garbage, in place of what gzip and tar have to say."""
    try:
        yield
    except (EOFError, zlib.error, tarfile.TarError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} must be a whole gzip archive, but it is truncated or damaged: {error}.") from None


def members(path: Path, suffix: str) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file of a gzipped tar archive whose name ends in ``suffix``, in one pass."""
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
    """Fetch files (name -> sha256, None if the source changes daily) into the cache, unless they are there."""
    pooch.get_logger().setLevel("WARNING")  # the progress bar says it all
    folder = cache_dir(cache) / "raw" / subfolder
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):  # another process that wants the same waits, and finds it there
        return [_fetch(base_url, name, sha256, folder, progress=progress) for name, sha256 in files.items()]


def _fetch(base_url: str, name: str, sha256: str | None, folder: Path, *, progress: bool) -> Path:
    fetch = _Resuming(folder / f"{name}.part", progress=progress, resume=sha256 is not None)
    try:
        done = pooch.retrieve(
            base_url + name,
            known_hash=None if sha256 is None else f"sha256:{sha256}",
            fname=name,
            path=folder,
            downloader=fetch,
        )
    except ValueError:
        raise ValueError(
            f"{base_url}{name} must have the sha256 {sha256}, but what came has another. Try again."
        ) from None
    except requests.RequestException as error:
        reason = type(error).__name__ if error.response is None else f"the server says {error.response.status_code}"
        raise OSError(
            f"cannot download {base_url}{name} ({reason}). Check the connection and run this again, or "
            "download it by hand and give its folder as `data_dir` (--data-dir)."
        ) from None
    return Path(done)


class _Resuming:
    """A downloader for pooch that goes on where an interrupted download of the same file stopped.

    What has arrived waits in a ``.part`` file, which never bears the final name and is gone once the file is complete
    or wrong.
    """

    def __init__(self, part: Path, *, progress: bool, resume: bool) -> None:
        self.part, self.progress, self.resume = part, progress, resume

    def __call__(self, url: str, output_file: str, _: Any) -> None:
        if not self.resume:
            self.part.unlink(missing_ok=True)
        have = self.part.stat().st_size if self.part.exists() else 0
        headers = {"Range": f"bytes={have}-"} if have else {}
        with requests.get(url, stream=True, timeout=30, headers=headers) as response:
            if response.status_code == requests.codes.range_not_satisfiable:  # all of it is here already
                self.part.replace(output_file)
                return
            response.raise_for_status()
            have = have if response.status_code == requests.codes.partial_content else 0
            total = int(response.headers.get("content-length", 0)) + have
            with self.part.open("ab" if have else "wb") as file, self._bar(total, have) as bar:
                for chunk in response.iter_content(1 << 16):
                    file.write(chunk)
                    bar.update(len(chunk))
        if total and self.part.stat().st_size < total:
            raise requests.ConnectionError("the connection closed early")
        self.part.replace(output_file)

    def _bar(self, total: int, have: int) -> Any:
        from tqdm import tqdm

        name = self.part.stem
        return tqdm(total=total or None, initial=have, unit="B", unit_scale=True, desc=name, disable=not self.progress)
