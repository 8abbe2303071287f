"""``cru stream``: predictions for observations, both as JSON lines."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cru.cli.error_handling import as_command, option_names
from cru.cli.options import AllowCode, Late, LateChoice, ModelFolder, as_time, load_forecaster
from cru.errors import InputError, full_message

if TYPE_CHECKING:
    from cru.forecaster.stream import Stream


def stream(
    model: ModelFolder,
    ahead: Annotated[str | None, typer.Option(help="Lead time of the predictions, such as 6h. Default: 0.")] = None,
    level: Annotated[
        list[float] | None,
        typer.Option(help="Level of an interval in per cent. Repeat the option for several. Default: 90."),
    ] = None,
    late: Late = LateChoice.refuse,
    start: Annotated[
        Path | None,
        typer.Option(
            help="Table of the first observations, such as the training table. Unused if the file of --state exists."
        ),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="Continue from this file if it exists, and store the state in it at the end.")
    ] = None,
    significance: Annotated[
        float | None,
        typer.Option(
            help="Also write the p-value of each observation. An anomaly has a smaller one than this level, say 0.001."
        ),
    ] = None,
    allow_code: AllowCode = False,
) -> None:
    """Read observations from standard input, one JSON object per line, and write a prediction for each.

    A line {"id": "a", "time": 1.5, "values": {"x": 2.0}} is an observation. A line without values is a query. A model
    that was fitted without ids needs no id. Known and static columns belong to the values. "known": {"plan": 3} has the
    known values of a query. With --ahead, "known" of an observation has the known values at the lead time. By default,
    they are those of the observation. The response to an invalid line is {"line": 3, "error": "..."}, and the stream
    continues.
    """
    from cru.forecaster.anomalies import check_level
    from cru.forecaster.queries import check_levels
    from cru.locks import only_process
    from cru.training.checkpoint import check_writable

    for name, opened in (("input", sys.stdin), ("output", sys.stdout)):
        if opened is None:
            raise ValueError(f"standard {name} must be open, got a closed one. Connect a file or a pipe to it.")
    forecaster = load_forecaster(model, allow_code=allow_code)
    gap = 0.0 if ahead is None else forecaster.clock_.duration(as_time(ahead, forecaster.clock_), "ahead")
    levels = check_levels(level or [90])
    anomaly_level = None if significance is None else check_level(significance, "significance")
    if state is None:
        alone: Any = nullcontext()
    else:
        check_writable(state)
        place = state.resolve()  # one lock for all names of the file
        found = f"{state}, which another `cru stream` uses"
        refusal = InputError("state", "be used by one process at a time", found, "Stop it first.")
        alone = only_process(place.with_name(f".{place.name}.lock"), refusal)
    with alone:
        kept = state if state is not None and state.exists() else None
        live = forecaster.stream(late=late.value, state=kept)
        if start is not None and kept is None:
            live.update_many(start)
        _stream(live, gap, levels, anomaly_level, state, option_names(as_command(stream)))


def _stream(
    live: "Stream",
    gap: float,
    levels: tuple[float, ...],
    anomaly_level: float | None,
    state: Path | None,
    names: Mapping[str, str],
) -> None:
    """Respond to all lines of standard input, then store the state."""
    with StopSignals() as stop:
        try:
            for response in respond_all(live, sys.stdin.buffer, gap, levels, stop, anomaly_level, names):
                sys.stdout.write(json.dumps(response) + "\n")
                sys.stdout.flush()
        except BrokenPipeError:  # the reader has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"the state is stored in {state}." if state else "no state is stored.") from None
        finally:
            stop.busy = True
            if state is not None:
                live.save(state)


class StopSignals:
    """Handler of SIGINT, SIGTERM and SIGHUP. The first signal ends the stream, but not within a line.

    A partly processed line would leave a wrong state. A second signal does not interrupt the saving of the state. The
    handler is also needed because polars replaces that of Ctrl-C. The new one waits for the end of a read, which may
    never come.
    """

    def __init__(self) -> None:
        self.requested = self.busy = False

    def __enter__(self) -> "StopSignals":
        numbers = [signal.SIGINT, signal.SIGTERM]
        hangup = getattr(signal, "SIGHUP", None)  # not on Windows
        if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:  # `nohup` ignores it
            numbers.append(hangup)
        self.before = {number: signal.signal(number, self) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        # After a stop, another signal must not interrupt the end of the process. A program that replaces the standard
        # output, such as a test, continues: it gets its handlers back.
        ends = self.requested and sys.stdout is sys.__stdout__
        for number, handler in self.before.items():
            signal.signal(number, signal.SIG_IGN if ends else handler)

    def __call__(self, *_: Any) -> None:
        """Handle a signal."""
        first, self.requested = not self.requested, True
        if first and not self.busy:
            raise KeyboardInterrupt


def respond_all(
    live: "Stream",
    lines: Any,
    gap: float,
    levels: tuple[float, ...],
    stop: StopSignals,
    anomaly_level: float | None,
    names: Mapping[str, str],
) -> Iterator[dict[str, Any]]:
    """Yield a response for each line that is not blank, until the end of the input or a stop signal.

    Args:
        live: the stream of the forecaster.
        lines: the lines of the input.
        gap: the lead time of the predictions, as a number.
        levels: the levels of the intervals, in per cent.
        stop: the handler of signals.
        anomaly_level: the level below which a p-value is an anomaly. None: no p-values.
        names: the options of the command by their Python arguments, for errors.

    Raises:
        KeyboardInterrupt: a signal arrived.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        stop.busy = True
        try:
            response = respond(live, line, gap, levels, anomaly_level)
        except (ValueError, OverflowError) as error:
            response = {"line": number, "error": full_message(error, names)}
        stop.busy = False
        yield response
        if stop.requested:  # a signal arrived during this line
            raise KeyboardInterrupt


def respond(
    live: "Stream", line: bytes, gap: float, levels: tuple[float, ...], anomaly_level: float | None = None
) -> dict[str, Any]:
    """Process one line and predict. The arguments are those of `respond_all`.

    Raises:
        ValueError: the line is not valid.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("a line must be one JSON object.") from None
    single = live.forecaster.columns_.id is None
    needed = {"time"} if single else {"id", "time"}
    if not isinstance(message, dict) or not needed <= message.keys() <= {"id", "time", "values", "known", "static"}:
        first = "" if single else '"id", '
        raise ValueError(f'a line must be an object with {first}"time" and, for an observation, "values".')
    name, time, values = message.get("id"), message["time"], message.get("values")
    if values is not None and not isinstance(values, dict):
        raise ValueError('"values" must be an object from names to numbers.')
    static, known = message.get("static"), message.get("known")
    later = time
    if gap and values is not None:
        clock = live.forecaster.clock_
        stamp = clock.stamp(clock.number(time) + gap)
        later = stamp if clock.kind == "number" else stamp.isoformat()
    if values is not None:
        if known is None:
            known = live.repeated(values)
        else:
            live.check_known(name, later, known)  # before the update, so that an error changes nothing
    found = (
        {}
        if values is None or anomaly_level is None
        else live.anomalies(name, time, values, level=anomaly_level, static=static)
    )
    if values is not None and not live.update(name, time, values, static=static):
        return {"id": name, "time": time, "dropped": "late"}
    asked = None if values is not None else static
    predictions = {"predictions": live.predict(name, later, level=levels, known=known, static=asked)}
    return {"id": name, "time": later} | ({"anomalies": found} if found else {}) | predictions
