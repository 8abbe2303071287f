"""End a process at a chosen step of what it writes: before and after each write, flush, rename and removal."""

import io
import os
from collections.abc import Callable
from typing import Any

_CALLS = ("fsync", "replace", "unlink", "mkdir")


def end_at(step: int, action: Callable[[], object]) -> bool:
    """Run ``action`` in a forked process that ends at the given step. True if there were not so many steps."""
    child = os.fork()
    if child == 0:
        code = 3
        try:
            _arm(step)
            action()
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9), f"the process failed at step {step}"
    return code == 0


def _arm(step: int) -> None:
    """Replace the calls that change the disk. The third kind of step of a write is in its middle."""
    left = [step]

    def tick() -> None:
        left[0] -= 1
        if left[0] < 0:
            os._exit(9)

    class Dying(io.FileIO):
        def write(self, content: Any) -> int:
            data = memoryview(content).cast("B")
            tick()
            half = len(data) // 2
            super().write(data[:half])
            tick()
            rest = data[half:]
            while len(rest):
                rest = rest[super().write(rest) :]
            tick()
            return len(data)

    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*words: Any, **options: Any) -> Any:
            tick()
            found = call(*words, **options)
            tick()
            return found

        return counted

    opened = os.fdopen
    os.fdopen = lambda fd, mode="r", *rest: (
        io.BufferedRandom(Dying(fd, "r+b")) if "w" in mode else opened(fd, mode, *rest)
    )
    for name in _CALLS:
        setattr(os, name, around(getattr(os, name)))
