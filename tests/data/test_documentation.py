"""The pages on data: their Python runs, on small files, and they say what differs from the protocol."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "reference" / "data.md").read_text()


def test_every_python_block_runs(physionet_dir, monkeypatch):
    monkeypatch.setenv("CRU_DATA_DIR", str(physionet_dir))
    names: dict[str, object] = {}
    for page in ("read-a-table.md", "load-a-dataset.md"):
        for block in re.findall(r"```python\n(.*?)```", (DOCS / "how-to" / page).read_text(), flags=re.S):
            exec(block, names)
    assert names["degrees"].shape[-1] == 2
    assert names["tasked"].train.task.name == "extrapolation"
    assert names["series"].origin.startswith("2024-01-01")


@pytest.mark.parametrize("name", ["interpolation", "extrapolation", "regression", "one_step_ahead"])
def test_every_task_is_documented(name):
    assert f"`{name}(" in REFERENCE


def test_what_differs_from_the_protocol_is_documented():
    text = " ".join(REFERENCE.split())
    for words in (
        "1 181 stations remain",
        "1 194 stations (238 in the test set)",
        "1 189 stations have 730 days",
        "makes one transition for each observation",
    ):
        assert words in text
    assert "`published=True` | as the published runs did" in text and "table of trivial predictors" in text
