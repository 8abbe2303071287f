"""``cru stream``: readings in, predictions out, as JSON lines."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cru.cli.options import AllowCode, ModelFolder, as_length, find_own_code
from cru.errors import InputError

if TYPE_CHECKING:
    from cru.forecaster.stream import Stream


def stream(
    model: ModelFolder,
    ahead: Annotated[str | None, typer.Option(help="Predict so long after each reading, 6h say; else at it.")] = None,
    level: Annotated[list[float] | None, typer.Option(help="An interval in per cent; may be repeated.")] = None,
    drop_late: Annotated[
        bool,
        typer.Option("--drop-late", help="Drop a reading from before its series' last one, rather than refuse it."),
    ] = False,
    start: Annotated[
        Path | None,
        typer.Option(help="A table of readings to begin with, that of training say, where no state is kept yet."),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="Go on from this file if it is there, and keep the state in it at the end.")
    ] = None,
    allow_code: AllowCode = False,
) -> None:
    """Take readings from standard input, one JSON object a line, and write a prediction for each.

    A line {"id": "a", "time": 1.5, "values": {"x": 2.0}} is a reading, one without values a query. A model that was
    fitted without ids needs none. A line that makes no sense is answered with {"line": 3, "error": "..."}, and the
    stream goes on.
    """
    from cru.forecaster import Forecaster
    from cru.forecaster.queries import check_levels
    from cru.locks import only_process
    from cru.training.checkpoint import check_writable

    for name, opened in (("input", sys.stdin), ("output", sys.stdout)):
        if opened is None:
            raise ValueError(f"standard {name} must be open, got a closed one. Connect a file or a pipe to it.")
    find_own_code(allow_code=allow_code)
    forecaster = Forecaster.load(model, allow_code=allow_code)
    gap = 0.0 if ahead is None else forecaster.clock_.duration(as_length(ahead, forecaster), "ahead")
    levels = check_levels(level or [90])
    late = "drop" if drop_late else "refuse"
    if state is None:
        alone: Any = nullcontext()
    else:
        check_writable(state)
        place = state.resolve()  # one lock for all the names of the file
        found = f"{state}, which another `cru stream` uses"
        refusal = InputError("state", "be used by one process at a time", found, "Stop it first.")
        alone = only_process(place.with_name(f".{place.name}.lock"), refusal)
    with alone:
        kept = state if state is not None and state.exists() else None
        live = forecaster.stream(late=late, state=kept)
        if start is not None and kept is None:
            live.update_many(start)
        _stream(live, gap, levels, state)


def _stream(live: "Stream", gap: float, levels: tuple[float, ...], state: Path | None) -> None:
    """CalibratedPrediction all lines of standard input, then keep the state."""
    with Stop() as stop:
        try:
            for answer in answers(live, sys.stdin.buffer, gap, levels, stop):
                sys.stdout.write(json.dumps(answer) + "\n")
                sys.stdout.flush()
        except BrokenPipeError:  # the reader has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"the state is kept in {state}." if state else "no state is kept.") from None
        finally:
            stop.busy = True
            if state is not None:
                live.save(state)


class Stop:
    """Ctrl-C, the end of a service or of its terminal: the first signal ends the stream, but not within a line, of
    which the state would keep a half; a second must not end the saving of the state.

    Also because polars, at its import, makes a Ctrl-C wait for the end of a read that it interrupts, which here may
    never come.
    """

    def __init__(self) -> None:
        self.asked = self.busy = False

    def __enter__(self) -> "Stop":
        numbers = [signal.SIGINT, signal.SIGTERM]
        hangup = getattr(signal, "SIGHUP", None)  # not on Windows
        if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:  # `nohup` ignores it
            numbers.append(hangup)
        self.before = {number: signal.signal(number, self) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def __call__(self, *_: Any) -> None:
        """A signal came."""
        first, self.asked = not self.asked, True
        if first and not self.busy:
            raise KeyboardInterrupt


def answers(live: "Stream", lines: Any, gap: float, levels: tuple[float, ...], stop: Stop) -> Iterator[dict[str, Any]]:
    """An answer for each line that is not blank, until there are no more or it is asked to stop."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        stop.busy = True
        try:
            said = answer(live, line, gap, levels)
        except (ValueError, OverflowError) as error:
            sentence = error.render({"late": "--drop-late"}) if isinstance(error, InputError) else str(error)
            said = {"line": number, "error": " ".join(sentence.split())}
        stop.busy = False
        yield said
        if stop.asked:  # while it was busy
            raise KeyboardInterrupt


def answer(live: "Stream", line: bytes, gap: float, levels: tuple[float, ...]) -> dict[str, Any]:
    """Take in one line, and predict."""

    try:
        asked = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("a line must be one JSON object.") from None
    single = live.forecaster.columns_.id is None
    needed = {"time"} if single else {"id", "time"}
    if not isinstance(asked, dict) or not needed <= asked.keys() <= {"id", "time", "values"}:
        first = "" if single else '"id", '
        raise ValueError(f'a line must be an object with {first}"time" and, for a reading, "values".')
    name, time, values = asked.get("id"), asked["time"], asked.get("values")
    if values is not None and not isinstance(values, dict):
        raise ValueError('"values" must be an object from names to numbers.')
    if values is not None and not live.update(name, time, values):
        return {"id": name, "time": time, "dropped": "late"}
    if gap and values is not None:
        clock = live.forecaster.clock_
        later = clock.stamp(clock.number(time) + gap)
        time = later if clock.kind == "number" else later.isoformat()
    return {"id": name, "time": time, "predictions": live.predict(name, time, level=levels)}
