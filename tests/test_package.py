"""The package as a whole: which way imports go, and how quick they are."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cru
from cru.logs import make_logger
from cru.native.layout import LAYOUTS

SOURCE = Path(cru.__file__).parent
ORDER = ["functional", "native", "layers", "models", "data", "evaluation", "training", "reporting", "forecaster", "cli"]
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


def test_imports_go_one_way() -> None:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for other in imported(path) if own in ORDER else ():
            if ORDER.index(other) > ORDER.index(own) or (own, other) in FORBIDDEN:
                wrong.append(f"{path.relative_to(SOURCE)} imports {other}")
    assert wrong == []


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """Imports inside functions and for type checkers count, too, except in the forecaster."""
    modules = {
        ".".join(("cru", *path.relative_to(SOURCE).with_suffix("").parts)): path for path in SOURCE.rglob("*.py")
    }
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items() if name != "cru.__init__"}
    edges: dict[str, set[str]] = {}
    for name, path in modules.items():
        edges[name] = set()
        tree = ast.parse(path.read_text())
        for node in tree.body if name.startswith("cru.forecaster") else ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in modules:
                inner = {f"{node.module}.{alias.name}" for alias in node.names} & modules.keys()
                edges[name] |= inner or {node.module}
    edges = {name: {other for other in found if not name.startswith(other)} for name, found in edges.items()}
    left = dict(edges)
    while free := [name for name, found in left.items() if not found & left.keys()]:
        left = {name: found for name, found in left.items() if name not in free}
    assert sorted(left) == []


def classes_of(path: Path) -> list[str]:
    """The classes that a file of any of the three languages defines, nested ones included."""
    text = path.read_text()
    if path.suffix == ".py":
        return [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    return re.findall(r"^\s*(?:struct|class)\s+(?:alignas\(\d+\)\s+)?(\w+)[^;]*?{", text, re.M)


def test_no_two_classes_share_a_name() -> None:
    """In Python, C++ and JavaScript together. Only the layouts are there twice: in layout.py and in common.h."""
    shared = {layout.__name__ for layout in LAYOUTS}
    found = {path: classes_of(path) for suffix in ("py", "h", "cpp", "js") for path in SOURCE.rglob(f"*.{suffix}")}
    assert {path.suffix for path, names in found.items() if names} == {".py", ".h", ".cpp", ".js"}
    assert shared <= set(found[SOURCE / "native" / "common.h"])
    places: dict[str, list[str]] = {}
    for path, names in found.items():
        for name in names:
            if path.name != "common.h" or name not in shared:
                places.setdefault(name, []).append(str(path.relative_to(SOURCE)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_file_names_repeat_only_for_commands_and_for_one_concept_at_several_levels() -> None:
    places: dict[str, list[str]] = {}
    for path in SOURCE.rglob("*.py"):
        folder = path.relative_to(SOURCE).parts[0]
        if path.stem not in ("__init__", "__main__", "registry") and folder != "cli":
            places.setdefault(path.stem, []).append(folder)
    several = {"functional", "native", "layers", "models"}
    wrong = {name: found for name, found in places.items() if len(found) > 1 and not set(found) <= several}
    assert wrong == {}


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
