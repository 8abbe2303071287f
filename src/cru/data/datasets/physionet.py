"""PhysioNet/CinC Challenge 2012: 48 hours of 8 000 intensive-care patients, 37 variables."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl

from cru.data import raw
from cru.data.cache import cache_dir, cached
from cru.data.grouping import pivot
from cru.data.series import SeriesSet, make_series
from cru.data.splits import Splits, scale, split

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
    """The paper's sets: 60/20/20 by patient, each feature to [0, 1] for each set.

    Times are hours since admission. ``scaling="train"`` takes minima and maxima from the training set alone, None
    leaves clinical units. ``published`` does as the published runs did: a weight of -1 counts as a measurement, and
    minima are at most 0. With ``joined`` the validation patients train, too.
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
    """All patients with their 37 variables in clinical units, and their outcomes."""
    folder = raw.data_dir(data_dir)
    sources = _find(folder) if folder else []

    def build() -> tuple[SeriesSet, dict[str, Any]]:
        paths = sources or raw.download(URL, FILES, "physionet2012", cache=cache, progress=progress)
        for path in paths:
            raw.verify(path, FILES[path.name] or "")
        return parse(paths[:2], paths[2:], published=published), _key(paths)

    name = "physionet-published.npz" if published else "physionet.npz"
    return cached(cache_dir(cache) / name, _key(sources), build)


def parse(archives: Sequence[Path], outcomes: Sequence[Path], *, published: bool = False) -> SeriesSet:
    """Read archives of records and tables of outcomes.

    Times are rounded to 0.1 h; several values of one variable in such a slot are averaged. A weight of -1 is missing,
    unless ``published``; its slot stays, so that a patient with nothing measured has one empty time point.
    """
    records = [record for archive in archives for record in _records(archive)]
    if not records:
        raise ValueError(f"{archives[0]} must hold records named like set-a/132539.txt, there is none.")
    table = _table(records)
    patient = np.repeat(np.arange(len(records)), [record.lines for record in records])
    known = list(UNITS)
    code = {name: k for k, name in enumerate(known)} | dict.fromkeys(DESCRIPTORS, 0)
    missing = table["parameter"].is_in(DESCRIPTORS)
    if not published:
        missing |= (table["parameter"] == "Weight") & (table["value"] == -1)
    wide = pivot(
        patient,
        table["slot"].to_numpy() / 10,
        table["parameter"].replace_strict(code, default=-1, return_dtype=pl.Int64).to_numpy(),
        np.where(missing.to_numpy(), np.nan, table["value"].to_numpy()),
        count=len(records),
        width=len(known),
        dtype=np.float32,
    )
    ids = [record.id for record in records]
    return make_series(
        wide.times,
        wide.values,
        wide.offsets,
        ids=ids,
        names=known,
        units=[UNITS[name] for name in known],
        time_unit="h",
        per_series=_outcomes(outcomes, ids),
    )


class _Record(NamedTuple):
    id: str
    where: str
    body: bytes
    lines: int


def _records(archive: Path) -> list[_Record]:
    """The text files of an archive, without their headers."""
    records = []
    for name, text in raw.members(archive, ".txt"):
        header, _, body = text.replace(b"\r\n", b"\n").partition(b"\n")
        where = f"{name} in {archive}"
        if header != _HEADER:
            raise ValueError(f"{where} must be a record that begins with {_HEADER.decode()!r}, got {header[:40]!r}.")
        body = body.rstrip(b"\n") + b"\n" if body.strip() else b""
        records.append(_Record(Path(name).stem, where, body, body.count(b"\n")))
    return records


def _table(records: Sequence[_Record]) -> pl.DataFrame:
    """All lines of all records: slot of 0.1 h, parameter, value. A bad line is found by reading record by record."""
    try:
        table = _read_lines(b"".join(record.body for record in records))
        if len(table) == sum(record.lines for record in records):
            return table
    except (pl.exceptions.PolarsError, ValueError):
        pass
    for record in records:
        try:
            if len(_read_lines(record.body)) == record.lines:
                continue
            reason = "some lines are blank"
        except (pl.exceptions.PolarsError, ValueError) as error:
            reason = str(error).splitlines()[0]
        raise ValueError(f"{record.where} must hold lines like '00:07,HR,73': {reason}")
    raise ValueError("the records must hold lines like '00:07,HR,73', and some do not.")


def _read_lines(text: bytes) -> pl.DataFrame:
    schema = {"time": pl.String, "parameter": pl.String, "value": pl.Float64}
    if not text:
        return pl.DataFrame(schema=schema | {"slot": pl.Float64})
    table = pl.read_csv(io.BytesIO(text), has_header=False, schema=schema)
    wrong = table.filter(
        ~pl.col("time").str.contains(r"^\d\d:[0-5]\d$").fill_null(False) | ~pl.col("value").is_finite().fill_null(False)
    )
    if len(wrong):
        raise ValueError(f"'{wrong['time'][0]},{wrong['parameter'][0]},{wrong['value'][0]}' is not such a line.")
    unknown = set(table["parameter"].unique()) - set(UNITS) - set(DESCRIPTORS)
    if unknown:
        raise ValueError(f"there is no variable {sorted(map(str, unknown))[0]!r}.")
    minutes = pl.col("time").str.slice(0, 2).cast(pl.Int64) * 60 + pl.col("time").str.slice(3, 2).cast(pl.Int64)
    return table.with_columns(slot=(minutes / 6).round(mode="half_to_even"))


def _outcomes(paths: Sequence[Path], ids: Sequence[str]) -> dict[str, np.ndarray]:
    """The outcomes of each patient; -1 (unknown) and patients without an entry become NaN."""
    columns = ("RecordID", *OUTCOMES)
    tables = []
    for path in paths:
        try:
            table = pl.read_csv(path, schema_overrides=dict.fromkeys(columns, pl.Float64))
            tables.append(table.select(columns))
        except pl.exceptions.PolarsError:
            raise ValueError(f"{path} must be a table of outcomes with the columns {', '.join(columns)}.") from None
    if not tables:
        return {}
    patients = pl.DataFrame({"RecordID": np.array(ids, np.float64)})
    joined = patients.join(pl.concat(tables).unique("RecordID"), on="RecordID", how="left", maintain_order="left")
    values = {name: joined[name].to_numpy().astype(np.float32) for name in OUTCOMES}
    return {name: np.where(column == -1, np.float32(np.nan), column) for name, column in values.items()}


def _key(paths: Sequence[Path]) -> dict[str, Any]:
    """What a prepared file was made from; without raw files, any that this version made will do."""
    made_from = {"raw": raw.fingerprint(paths)} if paths else {}
    return {"dataset": "physionet", "version": _VERSION} | made_from


def _find(folder: Path) -> list[Path]:
    found = raw.find(folder, ("physionet2012", "physionet"), list(FILES))
    if not found:
        raise FileNotFoundError(
            f"the data folder must hold {', '.join(FILES)}, itself or in a folder 'physionet2012': {folder} does not."
        )
    return found
