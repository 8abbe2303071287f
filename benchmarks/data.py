"""How long data takes: simulate, parse, read from the cache, and load ten million rows of a table.

    python benchmarks/data.py [--rows 10000000]

Each line runs in a process of its own, on two threads. The time is the wall clock's, without imports. The table also
has the processor time and the load of the machine, which show whether other programs ran. The memory is the process's
peak, with imports but without a frame that was in memory before. PhysioNet and USHCN need
CRU_DATA_DIR. Writes build/bench/data.json.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from memory import gigabytes

ROOT = Path(__file__).parents[1]
DATA_DIR = os.environ.get("CRU_DATA_DIR")
SIMULATED = ("pendulum-interpolation", "pendulum-regression")
LIMITS = {"make": 20.0, "read": 1.0, "table": 15.0}  # seconds
MEMORY = 2.0  # GB, for tables


def write_tables(folder: Path, rows: int) -> None:
    """Ten thousand series, unsorted, a tenth of the values missing: wide CSV and Parquet, with dates, two long ones."""
    import numpy as np
    import polars as pl

    rng = np.random.default_rng(0)
    series = rng.integers(0, 10_000, rows)
    values = {name: rng.normal(20, 5, rows).round(2) for name in ("tmax", "tmin", "rain")}
    for column in values.values():
        column[rng.random(rows) < 0.1] = np.nan
    # Times differ within a series: the row number breaks ties.
    wide = pl.DataFrame({"station": series, "hour": rng.permutation(rows) / 100, **values}, nan_to_null=True)
    wide = wide.with_columns(pl.format("station-{}", "station").alias("station"))
    wide.write_csv(folder / "wide.csv")
    wide.write_parquet(folder / "wide.parquet")
    dates = (pl.col("hour") * 3600e6).cast(pl.Int64).cast(pl.Datetime("us"))
    wide.with_columns(hour=dates).write_parquet(folder / "dates.parquet")
    names = pl.Series(["hr", "bp", "temp", "spo2", "rr"])
    long = {"patient": series, "what": names.gather(rng.integers(0, 5, rows)), "value": values["tmax"]}
    together = rng.integers(0, rows // 20_000, rows).astype(np.float64)  # two observations or so at each time
    pl.DataFrame(long | {"minute": together}).write_parquet(folder / "long.parquet")
    apart = rng.permutation(rows).astype(np.float64)  # the worst case: every observation at a time of its own
    pl.DataFrame(long | {"minute": apart}).write_parquet(folder / "long-apart.parquet")


def measure(what: str, argument: str) -> None:
    """Run one line and print its seconds, gigabytes and a note as JSON."""
    import pandas as pd

    import cru.data

    if what == "table":
        path = Path(argument.removesuffix(" as pandas"))
        frame = pd.read_parquet(path) if argument.endswith(" as pandas") else path
        before = 0.0 if frame is path else gigabytes("VmRSS")  # a frame in memory is the user's
        long = {"variable": "what", "values": "value", "duplicates": "mean"} if path.stem.startswith("long") else {}
        keys = {"id": "patient", "time": "minute"} if long else {"id": "station", "time": "hour", "unit": "h"}
        start, busy = time.perf_counter(), time.process_time()
        series = cru.data.from_table(frame, **keys, **long)
        seconds, busy = time.perf_counter() - start, time.process_time() - busy
        note = f"{len(series):,} series, {len(series.times):,} times"
    else:
        before = 0.0
        folder = None if argument in SIMULATED else DATA_DIR
        start, busy = time.perf_counter(), time.process_time()
        splits = cru.data.load(argument, data_dir=folder)
        seconds, busy = time.perf_counter() - start, time.process_time() - busy
        note = f"{sum(len(part) for part in splits):,} series, {sum(len(part.times) for part in splits):,} times"
    figures = {"seconds": seconds, "cpu": busy, "gigabytes": gigabytes("VmHWM") - before, "load": os.getloadavg()[0]}
    print(json.dumps({name: round(figure, 2) for name, figure in figures.items()} | {"note": note}))


def main() -> None:
    """Measure everything and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the tables")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(*options.measure)
        return
    with tempfile.TemporaryDirectory() as folder:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS"), "2")
        environment = os.environ | threads | {"CRU_CACHE_DIR": folder}
        names = [*SIMULATED, *(("physionet", "ushcn") if DATA_DIR else ())]
        lines = [(what, name, f"{what} {name}") for name in names for what in ("make", "read")]
        write_tables(Path(folder), options.rows)
        tables = ("wide.csv", "wide.parquet", "wide.parquet as pandas", "dates.parquet")
        tables += ("long.parquet", "long-apart.parquet")
        lines += [("table", f"{folder}/{name}", f"from_table, {options.rows:,} rows, {name}") for name in tables]
        results = []
        print(f"{'what':52s} {'seconds':>8s} {'limit':>6s} {'cpu':>6s} {'GB':>6s} {'load':>6s}")
        for what, argument, title in lines:
            command = [sys.executable, __file__, "--measure", what, argument]
            done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
            result = {"what": title, "limit": LIMITS[what]} | json.loads(done.stdout.splitlines()[-1])
            missed = result["seconds"] > LIMITS[what] or (what == "table" and result["gigabytes"] > MEMORY)
            figures = f"{result['seconds']:8.2f} {LIMITS[what]:6.0f} {result['cpu']:6.2f} {result['gigabytes']:6.2f}"
            figures += f" {result['load']:6.2f}"
            print(f"{title:52s} {figures}  {result['note']}{'  MISSED' if missed else ''}")
            results.append(result)
    out = ROOT / "build" / "bench" / "data.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=2) + "\n")
    print(f"written to {out.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
