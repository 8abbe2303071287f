"""The ledger: one JSON line for every finished run."""

import json
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from filelock import FileLock

from cru.files import write_atomically

LEDGER = Path("results") / "ledger.jsonl"
_LIBRARIES = ("cru", "torch", "numpy", "accelerate", "safetensors", "torchdiffeq")


def append(path: Path, record: Mapping[str, Any]) -> bool:
    """Add a line, whoever else is writing; False if the run (``record["run"]``) is there already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        if any(entry.get("run") == record["run"] for entry in read(path)):
            return False
        line = json.dumps(record, ensure_ascii=False)
        before = path.read_bytes() if path.exists() else b""
        torn = before and not before.endswith(b"\n")
        write_atomically(path, before + (("\n" if torn else "") + line + "\n").encode())
    return True


def read(path: Path) -> list[dict[str, Any]]:
    """All entries, oldest first. A line that was cut off while it was written is left out."""
    if not path.is_file():
        return []
    entries, text = [], path.read_text(encoding="utf-8")
    if text.strip() and not text.lstrip().startswith("{"):
        raise ValueError(f"{path} is not a ledger: its first line is not a run.")
    for line in text.split("\n"):  # a text in JSON may hold other ends of lines, U+2028 say
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries


def versions() -> dict[str, str]:
    """Python and the libraries that the numbers depend on."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit of the source tree that this package is run from, with "+changes" where it differs; None if it is
    installed."""
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
