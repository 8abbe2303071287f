"""Documentation is executed: the examples in docstrings, and every Python block in README and docs."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import cru
from cru.reporting import ledger, paper_tables, render
from cru.reporting.ledger import compare_with_presets
from cru.reporting.timing import read_seconds

ROOT = Path(__file__).parent.parent
# Pages with a test of their own, in tests/data, test_tutorials.py and test_dependencies.py.
OWN_TEST = {"load-a-dataset.md", "first-forecast.md", "intensive-care.md", "README.md"}
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [page for page in (ROOT / "README.md", *DOCS) if "```python" in page.read_text() and page.name not in OWN_TEST]
MODULES = sorted(
    module.name for module in pkgutil.walk_packages(cru.__path__, "cru.") if not module.name.endswith("__main__")
)


@pytest.mark.parametrize("package", sorted({name.split(".")[1] for name in MODULES}))
def test_docstrings(package: str) -> None:
    """An example can be pasted after ``import cru, torch, numpy as np``: it imports all else itself."""
    for name in MODULES:
        if name.split(".")[1] == package:
            torch.manual_seed(0)
            for example in doctest.DocTestFinder().find(importlib.import_module(name), name, globs={}):
                example.globs = {"cru": cru, "torch": torch, "np": np}
                assert doctest.DocTestRunner().run(example).failed == 0, example.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages(page: Path, tmp_path: Path, monkeypatch) -> None:
    """The blocks of a page run one after another, as a reader would run them, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S), 1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)


def test_the_results_are_those_of_the_ledger() -> None:
    """As ``cru table --out docs/reference/results.md`` writes them."""
    entries = compare_with_presets(ledger.read(ROOT / "results" / "ledger.jsonl"))
    left_out = paper_tables.count_left_out(entries)
    seconds = read_seconds(ROOT / "results" / "seconds.json")
    written = render.markdown(paper_tables.tables(entries, seconds=seconds), left_out, paper_tables.others(entries))
    assert (ROOT / "docs" / "reference" / "results.md").read_text() == written


def test_the_pages_name_files_that_exist() -> None:
    """Such as ``src/cru/models/base.py``, or ``models/base.py`` for short."""
    for page in (ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *DOCS):
        for path in re.findall(r"(?:\w+/)+[a-z_]\w+\.(?:py|cpp|h|toml)\b", page.read_text()):
            assert any((folder / path).exists() for folder in (ROOT, ROOT / "src" / "cru")), (page.name, path)


def test_the_sources_name_pages_that_exist() -> None:
    """Such as ``docs/explanation/maths.md`` in a comment, a docstring or a message."""
    paths = [path for folder in ("src", "examples", "benchmarks") for path in (ROOT / folder).rglob("*")]
    sources = [path for path in (*paths, ROOT / "hatch_build.py") if path.suffix in (".h", ".cpp", ".py", ".js")]
    named = {(source.name, page) for source in sources for page in re.findall(r"docs/[\w/-]+\.md", source.read_text())}
    assert named
    assert [(source, page) for source, page in sorted(named) if not (ROOT / page).exists()] == []


def test_the_api_reference_lists_every_public_name() -> None:
    index = (ROOT / "docs" / "reference" / "api" / "index.md").read_text()
    assert [name for name in cru.__all__ if f"`{name}`" not in index] == []
