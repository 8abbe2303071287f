"""The package as a whole: which way imports go, and how quick they are."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cru

SOURCE = Path(cru.__file__).parent
ORDER = ["functional", "native", "layers", "models", "data", "training", "evaluation", "forecaster", "cli"]
FORBIDDEN = {("models", "data"), ("layers", "data"), ("data", "models"), ("data", "layers")}


def imported(path: Path) -> set[str]:
    """The parts of cru that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "cru":
            parts = node.module.split(".")
            names |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("cru.")}
    return names & set(ORDER)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if own not in ORDER:
        return
    for other in imported(path):
        assert ORDER.index(other) <= ORDER.index(own), f"{own} must not import {other}"
        assert (own, other) not in FORBIDDEN, f"{own} must not import {other}"


def test_importing_cru_is_quick_because_nothing_heavy_comes_along() -> None:
    program = (
        "import cru, sys; print([name for name in ('torch', 'numpy', 'pandas', 'matplotlib') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    for name in cru.__all__:
        assert getattr(cru, name) is not None
    assert dir(cru) == cru.__all__
    with pytest.raises(AttributeError, match="no attribute 'Cru'"):
        _ = cru.Cru


def test_library_code_cannot_unpickle() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        assert not re.search(r"import (c?pickle|dill|cloudpickle|joblib)|pickle\.load|allow_pickle=True", text), path
        assert "weights_only=False" not in text, path
