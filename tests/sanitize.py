"""The tests of the kernel under AddressSanitizer and UBSan: `python -m tests.sanitize [what pytest takes]`.

The kernel is compiled on first use with $CXX, so that a compiler with other flags and a cache of its own are all it
takes. The interpreter is not instrumented: the runtime of AddressSanitizer has to be loaded before it.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from cru.native import compiler

FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g1 -O1"
KERNEL_TESTS = ("tests/native", "tests/functional/test_structural.py", "tests/layers/test_noise_floor.py")


def sanitized_environment(folder: Path) -> dict[str, str] | None:
    """The variables under which the kernel is checked, or None where the compiler has no sanitizers.

    ``folder`` keeps what is compiled, and the compiler: a script that adds its flags after those of the kernel.
    """
    command = compiler()
    if command is None:
        return None
    script, source = folder / "c++", folder / "empty.cpp"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@" {FLAGS}\n')
    script.chmod(0o700)
    source.write_text('extern "C" int zero() { return 0; }\n')
    build = [str(script), "-shared", "-fPIC", str(source), "-o", str(folder / "empty.so")]
    runtimes = [
        subprocess.run([*command, f"-print-file-name=lib{name}.so"], capture_output=True, text=True).stdout.strip()
        for name in ("asan", "stdc++")
    ]
    if not all(Path(path).is_absolute() for path in runtimes) or subprocess.run(build, capture_output=True).returncode:
        return None  # where there is no such library, the compiler answers with its bare name
    return os.environ | {
        "CXX": str(script),
        "CRU_CACHE_DIR": str(folder),
        "CRU_NATIVE": "compile",
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0",  # those of the interpreter
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def run(arguments: list[str], folder: Path) -> int | None:
    """The exit status of pytest, or None where there are no sanitizers."""
    environment = sanitized_environment(folder)
    if environment is None:
        return None
    options = ["-q", "-s", "-p", "no:cacheprovider", *arguments]  # -s: a sanitizer reports and ends the process
    return subprocess.run([sys.executable, "-m", "pytest", *options], env=environment).returncode


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        status = run(sys.argv[1:] or ["-m", "not slow and not wheel", *KERNEL_TESTS], Path(folder))
    if status is None:
        print("the compiler has no AddressSanitizer or UBSan: install gcc or clang with their runtimes.")
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
