"""The package as a whole: which way imports go, and how quick they are."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import cru
from cru.logs import make_logger

SOURCE = Path(cru.__file__).parent
ORDER = ["functional", "native", "layers", "models", "data", "evaluation", "training", "forecaster", "cli"]
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
    """No module that unpickles is imported, and every reader of arrays or tensors is told not to."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                roots = {name.split(".")[0] for name in names}
                assert not roots & {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load":
                owner, options = ast.unparse(node.func.value), {k.arg: ast.unparse(k.value) for k in node.keywords}
                assert owner != "torch" or options.get("weights_only") == "True", path
                assert owner not in ("np", "numpy") or options.get("allow_pickle") == "False", path
            if isinstance(node, ast.Attribute) and node.attr in ("read_pickle", "load_object_from_pickle"):
                raise AssertionError(path)


def test_every_message_is_made_printable(caplog) -> None:
    """Messages may hold names of files: a terminal obeys the escape codes in them."""
    for path in SOURCE.rglob("*.py"):
        assert path.name == "logs.py" or "getLogger" not in path.read_text(), f"{path} must use `make_logger`"
    log = make_logger("cru.test")
    log.warning("%s is damaged:\n%s", Path("a\x1b[2J\x9b31m\u202eb"), "100 %")
    assert caplog.messages == ["a\\x1b[2J\\x9b31m\\u202eb is damaged:\n100 %"]
