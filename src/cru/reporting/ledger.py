"""The ledger: one JSON line for every finished run."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from cru.files import MOST_TEXT, read_bounded, write_atomically
from cru.models.registry import is_own
from cru.schema import check, parse_json
from cru.training.experiment import data_version
from cru.training.presets import compare_with_preset
from cru.training.schemas import RecordSchema
from cru.training.settings import RunSettings

LEDGER = Path("results") / "ledger.jsonl"


def append(path: Path, record: Mapping[str, Any]) -> bool:
    """Add a line for a finished run, without its scores by feature. Other processes may write at the same time.

    Returns:
        False if the ledger has the run (``record["run"]``) already.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        if any(entry.get("run") == record["run"] for entry in read_lines(path)):
            return False
        line = json.dumps({key: value for key, value in record.items() if key != "features"}, ensure_ascii=False)
        before = path.read_bytes() if path.exists() else b""
        torn = before and not before.endswith(b"\n")
        write_atomically(path, before + (("\n" if torn else "") + line + "\n").encode())
    return True


def read(path: Path) -> list[dict[str, Any]]:
    """Read all finished runs, oldest first.

    Raises:
        ValueError: a line is not a run.
    """
    entries = read_lines(path)
    for entry in entries:
        check(RecordSchema, entry, f"{path}, run {entry.get('run')!r:.60},")
    return entries


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a JSON object from each line, oldest first. Skip an incomplete line."""
    if not path.is_file():
        return []
    text = read_bounded(path, MOST_TEXT).decode(errors="replace")
    if text.strip() and not text.lstrip().startswith("{"):
        raise ValueError(f"{path} is not a ledger: its first line is not a run.")
    entries = []
    for line in text.split("\n"):  # not `splitlines`: a JSON string may hold U+2028
        with suppress(ValueError):
            entries.append(parse_json(line, path))
    return entries


def compare_with_presets(entries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compare entries of a ledger with the current presets, which may have changed since a run.

    ``outdated`` means that the run used an earlier version of the data. ``older_settings`` means that the run had all
    settings of its preset at that time, and that the preset has other model or training settings now.
    """
    found = []
    for entry in entries:
        now: dict[str, Any] = {"changed": ["settings"], "shortened": False}  # settings that cannot be read
        now |= {"outdated": False, "older_settings": False}
        with suppress(KeyError, ValueError, TypeError, AttributeError):
            settings = RunSettings.from_dict(entry["settings"])
            if is_own(settings.model.name):  # its class may not be available
                now |= {name: entry[name] for name in ("changed", "shortened")}
            else:
                now |= compare_with_preset(settings, own_series="splits" in entry["changed"])
            same_data = all(name.startswith(("model.", "training.")) for name in now["changed"])
            now["older_settings"] = bool(now["changed"]) and not (entry["changed"] or now["shortened"]) and same_data
            now["outdated"] = entry.get("data_version", 1) != data_version(settings)
        found.append(dict(entry) | now)
    return found
