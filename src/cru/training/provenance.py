"""Provenance of a run: versions of libraries and the commit of the source."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_LIBRARIES = ("cru", "torch", "numpy", "accelerate", "safetensors", "torchdiffeq")


def find_versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that affect the results."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def find_commit() -> str | None:
    """Return the commit of the source tree of this package, with "+changes" if there are uncommitted changes.

    Return None if the package is installed.
    """
    import cru

    source = Path(cru.__file__).parent
    root = source.parents[1]
    if source.parent.name != "src" or not (root / ".git").exists():
        return None

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=30)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        head = git("rev-parse", "HEAD")
        return (head + ("+changes" if git("status", "--porcelain", "--", "src") else "")) or None
    except (OSError, subprocess.SubprocessError):
        return None
