"""Mutate real files and read them: configurations, weights, histories, states, checkpoints, logs, ledgers, tables.

A mutated file may be used or refused with one sentence. It must not run code, hang, end the process, fill the memory or
give a traceback. Each case is made from a seed and its number alone, so ``check_case`` repeats it.
"""

import gzip
import io
import json
import multiprocessing
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from cru import Forecaster
from cru.data import from_table
from cru.reporting import ledger, paper_tables, render
from cru.reporting.ledger import compare_with_presets
from cru.reporting.run_folder import read_folder
from cru.training import load_model
from cru.training import run as train
from tests.forging import (
    PLAIN,
    WORDS,
    array_changes,
    checkpoint_bytes,
    in_time,
    one_sentence,
    paths_of,
    replace_part,
    series_bytes,
    tensor_changes,
    unpacked,
    with_change,
    with_value,
    write_config,
)
from tests.test_files import fitted
from tests.training.tiny import tiny_settings, tiny_splits

_MEMORY = 4 << 30  # bytes that reading one file may take
_SILENCE = 180.0  # seconds for one case, on a busy machine
_CELLS = ["", "x", "NaN", "nan", "inf", "-1e999", "1e308", "9" * 400, "2024-13-45", "2024-01-31", "10.098", "1,5", '"']
_CELLS += ["=1+1", "\x1b[2J", "\x00", "\u2028", "\ufeff", "'", ";", "\t", "\r", "é" * 300, "0x10", "1_000", "--1", "#"]
_TYPES = [pl.Int8, pl.Int64, pl.Float32, pl.String, pl.Boolean, pl.Date, pl.Datetime("ns"), pl.Categorical, pl.Binary]

Rng = np.random.Generator


class Target(NamedTuple):
    """A file, what is done with it, and how its fields are changed."""

    name: str
    content: bytes
    put: Callable[[bytes], None]
    use: Callable[[], object]
    change_fields: Callable[[Rng], bytes]


class Failure(NamedTuple):
    """A case that went wrong."""

    number: int
    target: str
    words: str


def run(minutes: float, seed: int) -> int:
    """Try random cases for so long, in a process of their own. Print the failures and return their number.

    The process is spawned: a program that calls this needs ``if __name__ == "__main__"``.
    """
    context = multiprocessing.get_context("spawn")
    number, heard, failures = context.Value("q", 0), context.Value("d", 0.0), context.Queue()
    deadline, found, first = time.time() + 60 * minutes, 0, 0
    while time.time() < deadline:
        heard.value = time.time() + 120  # the start takes a while
        worker = context.Process(target=_work, args=(seed, first, deadline, number, heard, failures))
        worker.start()
        while worker.is_alive() and time.time() - heard.value < _SILENCE:
            worker.join(1.0)
        lost = "it hangs" if worker.is_alive() else f"the process ended with {worker.exitcode}"
        over = not worker.is_alive() and worker.exitcode == 0
        worker.kill()
        worker.join()
        while not failures.empty():
            found += _say(seed, failures.get())
        if not over:
            found += _say(seed, Failure(number.value, "", lost))
        first = number.value + 1
    _print(f"files: {first} cases, {found} failures, seed {seed}")
    return found


def _work(seed: int, first: int, deadline: float, number: Any, heard: Any, failures: Any) -> None:
    """Try case after case, and say before each which one it is."""
    with made_targets() as targets:
        if (size := Path("/proc/self/statm")).exists():  # Linux
            used = int(size.read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, resource.RLIM_INFINITY))
        case = first
        while time.time() < deadline:
            number.value, heard.value = case, time.time()
            if (failure := check_case(targets, seed, case)) is not None:
                failures.put(failure)
            case += 1


def check_case(targets: list[Target], seed: int, number: int) -> Failure | None:
    """Make one mutated file and use it. None if it is used, or refused with one sentence."""
    rng = np.random.default_rng((seed, number))
    target = targets[int(rng.integers(len(targets)))]
    content = target.content
    with suppress(ValueError, OverflowError, TypeError, pl.exceptions.PolarsError):  # not every change can be written
        content = target.change_fields(rng) if rng.random() < 0.5 else mutate(content, rng)
    try:
        with in_time(100), warnings.catch_warnings(action="ignore"):
            target.put(content)
            target.use()
    except BaseException as error:  # also a panic of polars
        if isinstance(error, KeyboardInterrupt):
            raise
        if not one_sentence(error):
            place = traceback.extract_tb(error.__traceback__)[-1]
            words = f"{type(error).__name__}: {str(error)[:200]!r} at {Path(place.filename).name}:{place.lineno}"
            return Failure(number, target.name, words)
    if "evil_module" in sys.modules:
        return Failure(number, target.name, "it ran code")
    return None


def mutate(content: bytes, rng: Rng) -> bytes:
    """Damage bytes: flip bits, set bytes and numbers, cut, remove, repeat, insert."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 5))):
        at = int(rng.integers(max(1, len(data))))
        if rng.random() < 0.3:
            at = min(at, int(rng.integers(1, 257)))  # headers are at the start
        size = int(rng.integers(1, 65))
        match int(rng.integers(7)):
            case 0 if data:
                data[at] ^= 1 << int(rng.integers(8))
            case 1:
                data[at : at + size] = bytes([int(rng.choice([0, 1, 127, 128, 255]))]) * size
            case 2:
                value = int(rng.choice([-1, 0, 1, 2**31 - 1, 2**62]))
                data[at : at + 8] = value.to_bytes(8, "little", signed=True)
            case 3:
                del data[at:]
            case 4:
                del data[at : at + size]
            case 5:
                data[at:at] = data[at : at + size]
            case _:
                data[at:at] = rng.bytes(size)
    return bytes(data)


def mutate_tree(tree: Any, rng: Rng) -> Any:
    """Change one to three fields of nested tables."""
    for _ in range(int(rng.integers(1, 4))):
        paths = list(paths_of(tree)) if isinstance(tree, dict | list) and tree else []
        if not paths:
            break
        path = paths[int(rng.integers(len(paths)))]
        choice = int(rng.integers(len(PLAIN) + len(WORDS) + 1))
        if choice < len(PLAIN):
            tree = with_value(tree, path, PLAIN[choice])
        elif choice < len(PLAIN) + len(WORDS):
            changed = with_change(tree, path, WORDS[choice - len(PLAIN)])
            tree = tree if changed is None else changed
        else:
            tree = with_value(tree, path, float(rng.choice([-1, 1])) * 10.0 ** float(rng.uniform(-30, 30)))
    return tree


def pick(changes: Iterator[Any], rng: Rng) -> Any:
    """One of the changes of arrays or tensors."""
    found = list(changes)
    return found[int(rng.integers(len(found)))][1]


@contextmanager
def made_targets() -> Iterator[list[Target]]:
    """Make the real files in a folder of their own. A module that a forger may name lies ready."""
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings(action="ignore"):
        root = Path(name)
        (root / "evil_module.py").write_text("class Model: pass\n")
        sys.path.insert(0, name)
        try:
            yield [*_models(root), *_runs(root), *_tables(root)]
        finally:
            sys.path.remove(name)


def _models(root: Path) -> Iterator[Target]:
    """The files of a model folder, with checksums made right, and a stream state."""
    kept, folder = root / "kept", root / "model"
    forecaster = fitted(1, "gru", hidden_size=4)
    forecaster.save(kept)

    def fresh() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(kept, folder)

    def use() -> None:
        check_answers(Forecaster.load(folder).forecast(horizon=2.0, every=1.0))

    def put_config(content: bytes) -> None:
        fresh()
        (folder / "config.json").write_bytes(content)
        with suppress(ValueError, RecursionError):
            write_config(folder, json.loads(content))

    config = (kept / "config.json").read_bytes()
    yield Target(
        "config.json", config, put_config, use, lambda rng: json.dumps(mutate_tree(json.loads(config), rng)).encode()
    )

    def part(name: str, change: Callable[[Rng], bytes]) -> Target:
        def put(content: bytes) -> None:
            fresh()
            replace_part(folder, name, content)

        return Target(name, next(kept.glob(f"{name.partition('.')[0]}-*")).read_bytes(), put, use, change)

    weights, _ = unpacked(next(kept.glob("model-*")).read_bytes())
    with np.load(next(kept.glob("history-*"))) as file:
        arrays = dict(file)
    header = json.loads(str(arrays.pop("header")))

    def change_history(rng: Rng) -> bytes:
        if rng.random() < 0.3:
            return series_bytes(arrays, mutate_tree(header, rng))
        key = list(arrays)[int(rng.integers(len(arrays)))]
        return series_bytes(arrays | {key: pick(array_changes(arrays[key]), rng)}, header)

    yield part("model.safetensors", lambda rng: checkpoint_bytes(pick(tensor_changes(weights), rng), {}))
    yield part("history.npz", change_history)

    state, stream = root / "state", forecaster.stream()
    stream.update("a", 1.0, {"x": 1.0})
    stream.update("b", 2.0, {"y": 1.0})
    stream.save(state)
    content = state.read_bytes()
    tensors, said = unpacked(content)

    def go_on() -> None:
        again = forecaster.stream(state=state)
        for name in again.names:
            for numbers in again.predict(name, 3.0).values():
                assert np.isfinite(list(numbers.values())).all()
        again.update("c", 3.0, {"x": 1.0})

    def change_state(rng: Rng) -> bytes:
        if rng.random() < 0.5:
            return checkpoint_bytes(tensors, mutate_tree(said, rng))
        return checkpoint_bytes(pick(tensor_changes(tensors), rng), said)

    yield Target("state", content, state.write_bytes, go_on, change_state)


def _runs(root: Path) -> Iterator[Target]:
    """The files of a run, and the ledger."""
    kept, folder, book = root / "kept-run", root / "run", root / "ledger.jsonl"
    settings = tiny_settings("gru", epochs=1)
    record = train(settings, kept, splits=tiny_splits())
    ledger.append(book, record)

    def part(name: str, use: Callable[[], object], change: Callable[[Rng], bytes] | None = None) -> Target:
        content = (kept / name).read_bytes()

        def put(changed: bytes) -> None:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(kept, folder)
            (folder / name).write_bytes(changed)

        plain = change or (lambda rng: (json.dumps(mutate_tree(json.loads(content), rng)) + "\n").encode())
        return Target(name, content, put, use, plain)

    def checkpoint(name: str) -> Callable[[Rng], bytes]:
        tensors, header = unpacked((kept / name).read_bytes())

        def change(rng: Rng) -> bytes:
            if rng.random() < 0.5:
                return checkpoint_bytes(tensors, mutate_tree(header, rng))
            return checkpoint_bytes(pick(tensor_changes(tensors), rng), header)

        return change

    def resume() -> None:
        (folder / "result.json").unlink()
        train(settings, folder, splits=tiny_splits(), resume=True)

    for name in ("settings.json", "result.json", "log.jsonl"):
        yield part(name, lambda: read_folder(folder))
    yield part("best.safetensors", lambda: load_model(folder), checkpoint("best.safetensors"))
    yield part("last.safetensors", resume, checkpoint("last.safetensors"))

    def show() -> None:
        entries = compare_with_presets(ledger.read(book))
        render.markdown(
            paper_tables.tables(entries), paper_tables.count_left_out(entries), paper_tables.others(entries)
        )

    line = {key: value for key, value in record.items() if key != "features"}
    yield Target(
        "ledger.jsonl",
        book.read_bytes(),
        book.write_bytes,
        show,
        lambda rng: (json.dumps(mutate_tree(json.loads(json.dumps(line)), rng)) + "\n").encode(),
    )


def _tables(root: Path) -> Iterator[Target]:
    """CSV files, plain and packed, and Parquet files."""
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "id": [f"s{k}" for k in range(4) for _ in range(6)],
            "time": [float(t) for _ in range(4) for t in range(6)],
            "x": rng.normal(size=24).round(3),
            "y": rng.normal(size=24).round(3),
        }
    )
    dated = frame.with_columns(pl.datetime(2024, 1, 1) + pl.duration(hours=pl.col("time").cast(pl.Int64)).alias("time"))
    forecaster = fitted(2)

    def table(name: str, content: bytes, change: Callable[[Rng], bytes], *, dates: bool = False) -> Target:
        path = root / name

        def use() -> None:
            found = from_table(path, id="id", time="time", values=["x", "y"], unit="h" if dates else None)
            assert np.isfinite(found.times).all() and np.isfinite(found.values).all()
            if not dates:
                check_answers(forecaster.predict(path, at=[20.0]))

        return Target(name, content, path.write_bytes, use, change)

    def change_cells(text: str) -> Callable[[Rng], bytes]:
        def change(rng: Rng) -> bytes:
            lines = [line.split(",") for line in text.splitlines()]
            for _ in range(int(rng.integers(1, 4))):
                row = lines[int(rng.integers(len(lines)))]
                row[int(rng.integers(len(row)))] = str(rng.choice(_CELLS))
            separator = "," if rng.random() < 0.7 else ";"
            return "\n".join(separator.join(row) for row in lines).encode()

        return change

    def change_frame(source: pl.DataFrame) -> Callable[[Rng], bytes]:
        def change(rng: Rng) -> bytes:
            column = source.columns[int(rng.integers(4))]
            match int(rng.integers(4)):
                case 0:
                    kind = _TYPES[int(rng.integers(len(_TYPES)))]
                    changed = source.with_columns(pl.col(column).cast(kind, strict=False))
                case 1:
                    changed = source.with_columns(pl.struct(column).alias(column))
                case 2:
                    number = float(rng.choice([np.nan, np.inf, -1e308, 5e-324, 1e18]))
                    changed = source.with_columns(pl.lit(number).alias(column))
                case _:
                    changed = source.drop(column) if rng.random() < 0.5 else source.clear()
            return parquet(changed)

        return change

    for name, source in (("numbers", frame), ("dates", dated)):
        text, dates = source.write_csv(), name == "dates"
        yield table(f"{name}.csv", text.encode(), change_cells(text), dates=dates)
        yield table(f"{name}.parquet", parquet(source), change_frame(source), dates=dates)
    packed = io.BytesIO()
    frame.write_csv(packed)
    whole = gzip.compress(packed.getvalue())
    yield table("packed.csv.gz", whole, lambda rng: gzip.compress(mutate(packed.getvalue(), rng)))


def parquet(frame: pl.DataFrame) -> bytes:
    """The content of a Parquet file."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()


def check_answers(answers: Any) -> None:
    """Answers of a file that was accepted are finite, and intervals are not crossed."""
    numbers = np.stack([answers[name].to_numpy() for name in ("mean", "std", "lo-90", "hi-90")], 1)
    assert np.isfinite(numbers).all() and (numbers[:, 1] >= 0).all() and (numbers[:, 2] <= numbers[:, 3]).all()


def _say(seed: int, failure: Failure) -> int:
    _print(f"FAILED files, seed {seed}, case {failure.number} {failure.target}: {failure.words}")
    return 1


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
