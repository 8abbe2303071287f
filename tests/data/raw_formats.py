"""Small files in the real raw formats of the datasets."""

import io
import tarfile

import numpy as np

RECORDS = {
    "132539": "00:00,RecordID,132539\n00:00,Age,54\n00:00,Gender,0\n00:00,Height,-1\n00:00,ICUType,4\n00:00,Weight,-1\n"
    "00:07,HR,73\n00:07,GCS,15\n01:02,HR,80\n01:03,HR,82\n30:00,HR,90\n",
    "132540": "00:00,RecordID,132540\n00:00,Age,76\n00:00,Weight,80.5\n00:05,Temp,35.1\n47:59,Temp,37.5\n",
    "132541": "00:00,RecordID,132541\n00:00,Weight,-1\n",  # nothing measured at all
    "132543": "00:00,RecordID,132543\n10:00,pH,735\n10:03,pH,7.4\n",
    "132545": "00:00,RecordID,132545\n00:00,Weight,-1\n00:02,Weight,70\n24:00,HR,60\n",
}
OUTCOMES = "RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death\n132539,6,1,5,-1,0\n132540,16,8,8,12,1\n"


def tar_of(files: dict[str, str]) -> bytes:
    """A gzipped tar archive in memory."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


def dly_line(station: str, year: int, month: int, element: str, values: dict[int, tuple[int, str]]) -> str:
    """One GHCN-Daily line; ``values`` are day -> (value, quality flag)."""
    days = [values.get(day, (-9999, " ")) for day in range(1, 32)]
    return f"{station:11s}{year:4d}{month:02d}{element:4s}" + "".join(f"{v:5d} {flag} " for v, flag in days)


def dly_text(station: str, years: range, *, seed: int = 0) -> str:
    """Lines of a whole station: two elements on every day of every month."""
    rng = np.random.default_rng(seed)
    lines = []
    for year in years:
        for month in range(1, 13):
            begin = np.datetime64(f"{year}-{month:02d}")
            last = int(((begin + 1).astype("datetime64[D]") - begin.astype("datetime64[D]")).astype(int))
            for element, low, high in (("TMAX", -100, 300), ("PRCP", 0, 200)):
                values = {day: (int(rng.integers(low, high)), " ") for day in range(1, last + 1)}
                lines.append(dly_line(station, year, month, element, values))
    return "".join(line + "\n" for line in lines)
