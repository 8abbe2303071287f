"""Documentation is executed: the examples in docstrings, and every Python block in README and docs."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import cru
from cru.evaluation import ledger, render, tables
from cru.training.run import as_of_now
from cru.training.timing import read_seconds

ROOT = Path(__file__).parent.parent
OWN_TEST = {
    "data.md",
    "weather.md",
    "ward.md",
}  # tests/data/test_documentation.py, on small raw files; test_tutorials.py
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in OWN_TEST)]
MODULES = sorted(
    module.name for module in pkgutil.walk_packages(cru.__path__, "cru.") if not module.name.endswith("__main__")
)


def readings() -> pd.DataFrame:
    """The table of the examples: five stations, three days each, a value missing."""
    days = np.tile(np.arange(3), 5)
    frame = pd.DataFrame(
        {"station": np.repeat(list("abcde"), 3), "day": days, "tmax": 20.0 + days, "tmin": 10.0 - days}
    )
    frame["date"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(frame["day"], unit="D")
    frame.loc[1, "tmin"] = np.nan
    return frame


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    torch.manual_seed(0)
    frame = readings()
    series = cru.data.from_table(frame, id="station", time="day", values=["tmax", "tmin"])
    result = doctest.testmod(module, extraglobs={"torch": torch, "cru": cru, "frame": frame, "series": series})
    assert result.failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages(page: Path, tmp_path: Path, monkeypatch) -> None:
    """The blocks of a page run one after another, as a reader would run them, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S), 1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)


def test_the_results_are_those_of_the_ledger() -> None:
    """As ``cru table --out docs/results.md`` writes them."""
    entries = as_of_now(ledger.read(ROOT / "results" / "ledger.jsonl"))
    left_out = tables.count_left_out(entries)
    seconds = read_seconds(ROOT / "results" / "seconds.json")
    written = render.markdown(tables.tables(entries, seconds=seconds), left_out, tables.others(entries))
    assert (ROOT / "docs" / "results.md").read_text() == written
