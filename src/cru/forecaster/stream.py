"""Readings as they arrive: a state for each series, and predictions at any later time."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from cru.data import Batch
from cru.errors import did_you_mean
from cru.forecaster.answers import BATCH, Answer, calibrated, check_levels
from cru.forecaster.folder import fingerprint
from cru.forecaster.frames import further_look, long_frame
from cru.forecaster.rows import Rows
from cru.models.base import State
from cru.training.checkpoint import read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from cru.forecaster.estimator import Forecaster


LARGEST = 1e12  # deviations from the mean: beyond, a network overflows


class Kept(NamedTuple):
    """What is kept of a series."""

    state: State
    last: Float64[Tensor, " batch"]  # the time of its last row
    seen: Float64[Tensor, " batch"]  # and of the last with a value in it


class Stream:
    """Many series at once, each updated by itself, as its readings arrive: made by ``Forecaster.stream``.

    A series costs the same memory however long it is, and an update the same time. The numbers are those that
    ``Forecaster.predict`` gives for all readings so far. Not to be shared between threads.

    Args:
        forecaster: a fitted one, with a model that runs forward in time.
        late: what to do with a reading from before the last one of its series: ``"refuse"`` it with an error, or
            ``"drop"`` it, of which `update` tells.
    """

    def __init__(self, forecaster: "Forecaster", *, late: Literal["refuse", "drop"] = "refuse") -> None:
        if late not in ("refuse", "drop"):
            raise ValueError(f"`late` must be 'refuse' or 'drop', got {late!r}.")
        model = forecaster.model_
        if not model.streams:
            model.advance(None)  # type: ignore[arg-type]  # says why
        self.forecaster, self.model, self.late = forecaster, model.eval(), late
        self._place = {name: number for number, name in enumerate(forecaster.names_)}
        self._ids: dict[str, int] = {}  # from a series to its row, and back
        self._names: list[str] = []
        empty = torch.zeros(1, 1, 0)
        self._rest = {"targets": empty, "target_mask": empty.bool(), "hidden": empty.bool()}
        self._rest |= {"lengths": torch.ones(1, dtype=torch.int64)}
        with torch.inference_mode():
            blank, never = self._batch(0.0), torch.full((1,), -math.inf, dtype=torch.float64)
            self._rows = Rows(Kept(model.advance(blank), never, never))

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, id: object) -> bool:  # noqa: A002
        return _name(id) in self._ids

    @property
    def ids(self) -> tuple[str, ...]:
        """The series so far."""
        return tuple(self._names)

    @torch.inference_mode()
    def update(self, id: object, time: Any, values: Mapping[str, float | None]) -> bool:  # noqa: A002
        """Take in a reading: what was measured at a time, by name; what is left out, None or NaN is missing.

        Whether it was taken: False for a late one with ``late="drop"``.

        >>> stream.update("ward-3", 17.5, {"HR": 71, "Temp": 36.9})  # doctest: +SKIP
        True
        """
        moment = self.forecaster.clock_.number(time)
        batch = self._batch(moment, values)
        row = self._ids.get(_name(id))
        kept: Kept | None = None if row is None else self._rows.row(row)
        if kept is not None and moment < kept.last:
            if self.late == "drop":
                return False
            raise ValueError(self._too_early(id, time, kept, "Sort the readings, or open the stream with late='drop'."))
        state = self.model.advance(batch, None if kept is None else kept.state)
        now = batch.times[:, 0]
        unseen = batch.times.new_full((1,), -math.inf) if kept is None else kept.seen
        row = self._add([_name(id)]) if row is None else row
        self._rows.put(row, Kept(state, now, now if batch.mask.any() else unseen))
        return True

    @torch.inference_mode()
    def predict(self, id: object, time: Any, *, level: Sequence[float] | float = (90,)) -> dict[str, dict[str, float]]:  # noqa: A002
        """What to expect of a series at a time, not before its last reading: mean, std and bounds of each variable.

        A series of which nothing is known yet gets what is known of all.

        >>> stream.predict("ward-3", 20.0)["HR"]  # doctest: +SKIP
        {'mean': 72.3, 'std': 6.1, 'lo-90': 61.9, 'hi-90': 83.0}
        """
        levels = check_levels(level)
        moment = self.forecaster.clock_.number(time)
        row = self._ids.get(_name(id))
        kept: Kept | None = None if row is None else self._rows.row(row)
        if kept is not None and moment < kept.last:
            raise ValueError(self._too_early(id, time, kept, "For what was before it, give the table to `predict`."))
        lead = math.inf if kept is None else moment - float(kept.seen)
        said = self.model(self._batch(moment), state=None if kept is None else kept.state)
        answer = self._answer(said, np.array([lead]), levels)
        numbers = {"mean": answer.mean, "std": answer.std, **answer.bounds}
        return {
            name: {what: float(number[0, place]) for what, number in numbers.items()}
            for name, place in self._place.items()
        }

    @torch.inference_mode()
    def update_many(self, table: Any) -> int:
        """Take in a table of readings with the columns of the training table; how many rows were taken.

        Much quicker than a row at a time: for the past of all series, or for what came in since the last call.
        """
        forecaster = self.forecaster
        series = further_look(table, forecaster.columns_, forecaster.clock_, forecaster.names_)
        known = np.array([self._ids.get(id, -1) for id in series.ids], np.int64)  # noqa: A001
        last = self._rows.take(torch.from_numpy(np.maximum(known, 0))).last.numpy()
        late = series.times < np.repeat(np.where(known >= 0, last, -math.inf), series.lengths)
        if late.any() and self.late == "refuse":
            row = int(late.argmax())
            number = int(series.series_index[row])
            kept, time = self._rows.row(int(known[number])), forecaster.clock_.stamps(series.times[[row]])[0]
            hint = "Sort the readings, or open the stream with late='drop'."
            raise ValueError(self._too_early(series.ids[number], time, kept, hint))
        offsets = np.concatenate([[0], np.cumsum(~late)])[series.offsets].astype(np.int64)
        series = series.take_rows(np.flatnonzero(~late), offsets).scaled_by(forecaster.scaler_)
        for group in (np.flatnonzero(known >= 0), np.flatnonzero(known < 0)):
            group = group[series.lengths[group] > 0]
            group = group[np.argsort(series.lengths[group], kind="stable")]  # of one length together: little padding
            for start in range(0, len(group), BATCH):
                chosen = group[start : start + BATCH]
                self._take_in(series.batch(chosen, dtype=self.model.dtype), torch.from_numpy(known[chosen]))
        return int((~late).sum())

    def _take_in(self, batch: Batch, rows: Tensor) -> None:
        """Whole series at once, all of them known or all of them new (rows of -1)."""
        kept = None if int(rows[0]) < 0 else self._rows.take(rows)
        state = self.model.advance(batch, None if kept is None else kept.state)
        last = batch.times[:, -1]  # padding repeats it
        seen = torch.where(batch.observed, batch.times, -math.inf).amax(1)
        if kept is None:
            first = self._add(batch.ids)
            rows = torch.arange(first, first + len(batch))
        else:
            seen = torch.maximum(seen, kept.seen)
        self._rows.put(rows, Kept(state, last, seen))

    @torch.inference_mode()
    def predict_many(
        self, at: Any, *, ids: Sequence[object] | None = None, level: Sequence[float] | float = (90,)
    ) -> Any:
        """What to expect of all series, or of ``ids``, at the times ``at``: a frame as ``Forecaster.predict`` gives."""
        levels, clock = check_levels(level), self.forecaster.clock_
        moments = np.unique(clock.numbers(at))
        chosen = self.ids if ids is None else tuple(_name(id) for id in ids)  # noqa: A001
        strange = next((id for id in chosen if id not in self._ids), None)  # noqa: A001
        if strange is not None:
            raise ValueError(f"`ids` must be series of this stream, got {strange!r}; {did_you_mean(strange, self.ids)}")
        answers = [Answer(*(np.empty((0, len(self._place))) for _ in "ms"), {})]
        for start in range(0, len(chosen), BATCH):
            answers.append(self._answer_many(chosen[start : start + BATCH], moments, levels))
        numbers = {"mean": [a.mean for a in answers], "std": [a.std for a in answers]}
        numbers |= {name: [a.bounds[name] for a in answers[1:]] for name in answers[-1].bounds}
        asked, names = len(chosen) * len(moments), list(self._place)
        return long_frame(
            self.forecaster.columns_,
            clock,
            ids=np.repeat(chosen, len(moments) * len(names)).tolist(),
            times=np.repeat(np.tile(moments, len(chosen)), len(names)),
            variables=names * asked,
            numbers={name: np.concatenate(parts).ravel() for name, parts in numbers.items()},
            polars=self.forecaster.columns_.polars,
        )

    def _answer_many(self, ids: Sequence[str], moments: np.ndarray, levels: tuple[float, ...]) -> Answer:
        kept: Kept = self._rows.take(torch.tensor([self._ids[id] for id in ids]))  # noqa: A001
        early = (moments.min(initial=math.inf) < kept.last).nonzero()
        if len(early):
            row = self._rows.row(self._ids[ids[int(early[0])]])
            hint = "For what was before it, give the table to `predict`."
            raise ValueError(self._too_early(ids[int(early[0])], self.forecaster.clock_.stamps(moments[:1])[0], row, hint))
        shape = (len(ids), len(moments), len(self._place))
        nothing = torch.zeros(*shape[:2], 0)
        batch = Batch(
            times=torch.from_numpy(moments).expand(shape[:2]),
            values=torch.zeros(shape, dtype=self.model.dtype),
            mask=torch.zeros(shape, dtype=torch.bool),
            targets=nothing,
            target_mask=nothing.bool(),
            hidden=nothing.bool(),
            lengths=torch.full((len(ids),), len(moments)),
            ids=tuple(ids),
        )
        return self._answer(
            self.model(batch, state=kept.state), (moments - kept.seen.numpy()[:, None]).ravel(), levels
        )

    def _add(self, names: Sequence[str]) -> int:
        first = self._rows.add(len(names))
        self._ids |= {name: first + number for number, name in enumerate(names)}
        self._names += names
        return first

    def forget(self, id: object) -> None:  # noqa: A002
        """Drop a series that has ended."""
        row = self._ids.pop(_name(id), None)
        if row is None:
            raise ValueError(f"`id` must be a series of this stream, got {id!r}; {did_you_mean(_name(id), self._ids)}")
        with torch.inference_mode():
            moved = self._rows.remove(row)
        last = self._names.pop()
        if moved != row:
            self._ids[last], self._names[row] = row, last

    def save(self, path: Path | str) -> None:
        """All states in one file (safetensors, with a JSON header), for ``Forecaster.stream(state=path)``."""
        header = {"kind": "stream", "model": fingerprint(self.forecaster), "ids": self._names}
        write_checkpoint(Path(path), self._rows.as_tensors(), header)

    def restore(self, path: Path | str) -> None:
        """Go on where `save` left off; the states of another model are refused."""
        tensors, header = read_checkpoint(Path(path))
        if header.get("kind") != "stream":
            raise ValueError(f"{path} does not hold the state of a stream.")
        if header["model"] != fingerprint(self.forecaster):
            raise ValueError(f"{path} is the state of another model; a state belongs to the weights that made it.")
        self._rows.read(tensors)
        self._names = header["ids"]
        self._ids = {name: row for row, name in enumerate(self._names)}

    def _batch(self, moment: float, values: Mapping[str, float | None] | None = None) -> Batch:
        """One reading, or one question, in the model's units."""
        width = len(self._place)
        row, mask = [0.0] * width, [False] * width
        scaler = self.forecaster.scaler_
        for name, value in (values or {}).items():
            place = self._place.get(name)
            if place is None:
                raise ValueError(f"`values` must be of the training table, got {name!r}; {did_you_mean(name, self._place)}")
            if value is None or value != value:
                continue
            if isinstance(value, str) or not abs(value - scaler.shift[place]) < LARGEST * scaler.scale[place]:
                raise ValueError(f"`values` must be sensible numbers, or None for missing, got {name!r}: {value!r}.")
            row[place], mask[place] = (value - scaler.shift[place]) / scaler.scale[place], True
        return Batch(
            times=torch.tensor([[moment]], dtype=torch.float64),
            values=torch.tensor([[row]], dtype=self.model.dtype),
            mask=torch.tensor([[mask]]),
            ids=("",),
            **self._rest,  # type: ignore[arg-type]
        )

    def _answer(self, said: Any, lead: np.ndarray, levels: tuple[float, ...]) -> Answer:
        mean, var = (part.double().numpy().reshape(-1, len(self._place)) for part in said[:2])
        forecaster = self.forecaster
        return calibrated(
            mean, var, lead, scaler=forecaster.scaler_, calibration=forecaster.calibration_, levels=levels
        )

    def _too_early(self, id: object, time: Any, kept: Kept, hint: str) -> str:  # noqa: A002
        last = self.forecaster.clock_.stamps(kept.last.numpy())[0]
        return f"`time` must not lie before the last reading of series {_name(id)!r}, {last}: got {time}. {hint}"


def _name(id: object) -> str:  # noqa: A002
    """Series are named by text, as in a table; one without a column of ids is a single series."""
    return "0" if id is None else str(id)
