"""PhysioNet/CinC Challenge 2012: 48 hours of 8 000 intensive-care patients, 37 variables."""

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from cru.data import raw
from cru.data.cache import cache_dir, cached
from cru.data.series import SeriesSet, make_series
from cru.data.splits import Splits, scale, split
from cru.data.tables import pivot
from cru.progress import track
from cru.shapes import Float64, Int64

URL = "https://physionet.org/files/challenge-2012/1.0.0/"
FILES: dict[str, str | None] = {
    "set-a.tar.gz": "28aff9276b5a864608836f4f2dd3791d3feedcc57178620ecb66bb7e8e439d3d",
    "set-b.tar.gz": "639ab95b809aa849cc083b1675a5f1b345547d7c670c88f3a15b61e3c489105e",
    "Outcomes-a.txt": "2613ea60ccda29f87571a7d6b09ad130858a8ccd66325bd073365925026883c2",
    "Outcomes-b.txt": "1305f29734da374a809483229a99f33a9230aa8d4fa74b1a2d6ad788136423d5",
}
DESCRIPTORS = ("RecordID", "Age", "Gender", "Height", "ICUType")
# fmt: off
UNITS = {
    "Albumin": "g/dL", "ALP": "IU/L", "ALT": "IU/L", "AST": "IU/L", "Bilirubin": "mg/dL", "BUN": "mg/dL",
    "Cholesterol": "mg/dL", "Creatinine": "mg/dL", "DiasABP": "mmHg", "FiO2": "", "GCS": "", "Glucose": "mg/dL",
    "HCO3": "mmol/L", "HCT": "%", "HR": "bpm", "K": "mEq/L", "Lactate": "mmol/L", "MAP": "mmHg", "MechVent": "",
    "Mg": "mmol/L", "Na": "mEq/L", "NIDiasABP": "mmHg", "NIMAP": "mmHg", "NISysABP": "mmHg", "PaCO2": "mmHg",
    "PaO2": "mmHg", "pH": "", "Platelets": "cells/nL", "RespRate": "bpm", "SaO2": "%", "SysABP": "mmHg",
    "Temp": "°C", "TroponinI": "µg/L", "TroponinT": "µg/L", "Urine": "mL", "WBC": "cells/nL", "Weight": "kg",
}
# fmt: on
OUTCOMES = ("SAPS-I", "SOFA", "Length_of_stay", "Survival", "In-hospital_death")
_HEADER = b"Time,Parameter,Value"
_TIME = re.compile(r"\d\d:[0-5]\d")
_CODES = {name: k for k, name in enumerate(UNITS)} | dict.fromkeys(DESCRIPTORS, -1)
_VERSION = 1
HOURS = 48.0  # the length of a record


def load(
    *,
    data_dir: Path | str | None = None,
    cache: Path | str | None = None,
    seed: int = 0,
    scaling: Literal["each", "train"] | None = "each",
    published: bool = False,
    joined: bool = False,
    progress: bool = False,
) -> Splits:
    """Load the sets of the paper: 60/20/20 by patient. Times are hours since admission.

    Args:
        data_dir: the folder of the raw files; see `cru.data.raw.data_dir`.
        cache: the cache folder; see `cru.data.cache.cache_dir`.
        seed: the seed of the split.
        scaling: scale each feature to [0, 1], with the minima and maxima of ``"each"`` set or of the ``"train"`` set.
            None keeps clinical units.
        published: whether to prepare data as for the published runs: a weight of -1 counts as a measurement, and
            minima are at most 0.
        joined: whether the training set includes the validation patients.
        progress: whether to show a bar while files are downloaded and read.
    """
    patients = prepare(data_dir=data_dir, cache=cache, published=published, progress=progress)
    sets = split(patients, seed=seed, joined=joined)
    return sets if scaling is None else scale(sets, fit_on=scaling, kind="min-max", through_zero=published)


def prepare(
    *,
    data_dir: Path | str | None = None,
    cache: Path | str | None = None,
    published: bool = False,
    progress: bool = False,
) -> SeriesSet:
    """Load all patients with their 37 variables in clinical units, and their outcomes.

    The arguments are those of `load`.
    """
    folder = raw.data_dir(data_dir)
    sources = _find(folder) if folder else []

    def build() -> tuple[SeriesSet, dict[str, Any]]:
        paths = sources or raw.download(URL, FILES, "physionet2012", cache=cache, progress=progress)
        for path in paths:
            raw.verify(path, FILES[path.name] or "")
        return parse(paths[:2], paths[2:], published=published, progress=progress), _key(paths)

    name = "physionet-published.npz" if published else "physionet.npz"
    return cached(cache_dir(cache) / name, _key(sources), build)


def parse(
    archives: Sequence[Path], outcomes: Sequence[Path], *, published: bool = False, progress: bool = False
) -> SeriesSet:
    """Read archives of records and tables of outcomes.

    Times are rounded to 0.1 h. Several values of one variable in such a slot are averaged. A weight of -1 is missing,
    unless ``published``. Its slot stays: a patient without measurements has one empty time point.

    Args:
        archives: the gzipped tar archives of records.
        outcomes: the tables of outcomes.
        published: whether a weight of -1 counts as a measurement.
        progress: whether to show a bar.

    Raises:
        ValueError: a file is not a record, or not a table of outcomes.
    """
    records = [record for archive in archives for record in _records(archive)]
    if not records:
        raise ValueError(f"{archives[0]} must hold records named like set-a/132539.txt: there is none.")
    read = map(_read_lines, track(records, "physionet", show=progress))
    lines = _Lines(*(np.concatenate(part) for part in zip(*read, strict=True)))
    missing = lines.code < 0
    if not published:
        missing |= (lines.code == _CODES["Weight"]) & (lines.value == -1)
    wide = pivot(
        np.repeat(np.arange(len(records)), [record.lines for record in records]),
        lines.slot / 10,
        np.maximum(lines.code, 0),
        np.where(missing, np.nan, lines.value),
        count=len(records),
        width=len(UNITS),
        dtype=np.float32,
    )
    ids = [record.id for record in records]
    return make_series(
        wide.times,
        wide.values,
        wide.offsets,
        ids=ids,
        names=list(UNITS),
        units=list(UNITS.values()),
        time_unit="h",
        per_series=_outcomes(outcomes, ids),
    )


class _Record(NamedTuple):
    id: str
    where: str
    body: bytes
    lines: int


def _records(archive: Path) -> list[_Record]:
    """Read the text files of an archive, without their headers."""
    records = []
    for name, text in raw.members(archive, ".txt"):
        header, _, body = text.replace(b"\r\n", b"\n").partition(b"\n")
        where = f"{name} in {archive}"
        if header != _HEADER:
            raise ValueError(f"{where} must be a record that begins with {_HEADER.decode()!r}, got {header[:40]!r}.")
        body = body.rstrip(b"\n") + b"\n" if body.strip() else b""
        records.append(_Record(Path(name).stem, where, body, body.count(b"\n")))
    return records


class _Lines(NamedTuple):
    """The lines of records: slot of 0.1 h, number of the variable or -1 for a descriptor, value."""

    slot: Float64[np.ndarray, " line"]
    code: Int64[np.ndarray, " line"]
    value: Float64[np.ndarray, " line"]


def _read_lines(record: _Record) -> _Lines:
    """Read the lines of a record.

    Raises:
        ValueError: a line is not like '00:07,HR,73'.
    """
    minutes, codes, values = [], [], []
    for line in record.body.decode("latin-1").splitlines():
        time, _, rest = line.partition(",")
        name, _, number = rest.partition(",")
        try:
            value = float(number)
        except ValueError:
            value = np.nan
        if not _TIME.fullmatch(time) or not np.isfinite(value) or name not in _CODES:
            known = name in _CODES or not name
            reason = f"{line!r} is not such a line." if known else f"there is no variable {name!r}."
            raise ValueError(f"{record.where} must hold lines like '00:07,HR,73': {reason}")
        minutes.append(60 * int(time[:2]) + int(time[3:]))
        codes.append(_CODES[name])
        values.append(value)
    slot = np.rint(np.array(minutes, np.float64) / 6)  # half to even
    return _Lines(slot, np.array(codes, np.int64), np.array(values, np.float64))


def _outcomes(paths: Sequence[Path], ids: Sequence[str]) -> dict[str, np.ndarray]:
    """Read the outcomes of each patient. -1 (unknown) and patients without an entry become NaN.

    Raises:
        ValueError: a file is not a table of outcomes.
    """
    columns, known = ("RecordID", *OUTCOMES), dict[float, list[float]]()
    for path in paths:
        try:
            with path.open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    patient, *numbers = (float(row[column]) for column in columns)
                    known.setdefault(patient, numbers)
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{path} must be a table of outcomes with the columns {', '.join(columns)}.") from None
    if not paths:
        return {}
    nothing = [np.nan] * len(OUTCOMES)
    values = np.array([known.get(float(patient), nothing) for patient in ids], np.float32)
    values[values == -1] = np.nan
    return {name: values[:, k] for k, name in enumerate(OUTCOMES)}


def _key(paths: Sequence[Path]) -> dict[str, Any]:
    """Return the raw files that a prepared file must come from. Without raw files, any file of this version fits."""
    made_from = {"raw": raw.fingerprint(paths)} if paths else {}
    return {"dataset": "physionet", "version": _VERSION} | made_from


def _find(folder: Path) -> list[Path]:
    found = raw.find(folder, ("physionet2012", "physionet"), list(FILES))
    if not found:
        raise FileNotFoundError(
            f"the data folder must hold {', '.join(FILES)}, itself or in a folder 'physionet2012': {folder} does not."
        )
    return found
