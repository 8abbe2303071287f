"""Run every fuzzer of this package: `python -m tests.fuzz [--minutes 10] [--seed 0]`. Exit status 1 on a failure."""

import argparse
import importlib
import pkgutil
import sys

import torch

import tests.fuzz


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long, all fuzzers together")
    parser.add_argument("--seed", type=int, default=0, help="the first problem")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = [info.name for info in pkgutil.iter_modules(tests.fuzz.__path__)]
    modules = [importlib.import_module(f"tests.fuzz.{name}") for name in names if not name.startswith(("_", "test_"))]
    fuzzers = [module.run for module in modules if hasattr(module, "run")]
    failures = sum(run(options.minutes / len(fuzzers), options.seed) for run in fuzzers)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
