"""Test series with what several models say of them, as plain data for the page."""

import base64
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from cru.evaluation.outputs import Output
from cru.evaluation.report.summary import number


def describe_series(
    said: Mapping[str, Output], *, names: Sequence[str], units: Sequence[str], regression: bool
) -> dict[str, Any]:
    """One series: its times, its readings or frames, and for each run what the model says, how sure it is, its gain.

    ``said`` has the id of a run for each output; all are of the same series. Channels without any reading or target
    are left out.
    """
    first = next(iter(said.values()))
    series: dict[str, Any] = {"id": first.id, "times": numbers(first.times, 7), "channels": [], "frames": None}
    if first.is_image:
        truth = None if regression else strip(first.targets[:, 0])
        series["frames"] = {
            "height": first.values.shape[2],
            "width": first.values.shape[3],
            "seen": strip(first.values[:, 0]),
            "observed": "".join("1" if seen else "0" for seen in first.observed),
            "truth": truth,
        }
    if first.noise is not None and first.noise.any():
        series["noise"] = numbers(first.noise, 3)
    image_targets = first.targets.ndim > 2
    kept = [] if image_targets else [k for k in range(first.targets.shape[1]) if _anything(first, k, regression)]
    series["channels"] = [
        {"name": names[k], "unit": units[k] if units else "", **_points(first, k, regression)} for k in kept
    ]
    series["said"] = {run: _said(output, kept, image_targets) for run, output in said.items()}
    return series


def fitting(series: Iterable[dict[str, Any]], size: int) -> list[dict[str, Any]]:
    """As many of the series, from the first on, as fit into ``size`` bytes of JSON; the first in any case."""
    kept: list[dict[str, Any]] = []
    for one in series:
        size -= len(json.dumps(one, separators=(",", ":")))
        if kept and size < 0:
            break
        kept.append(one)
    return kept


def numbers(values: Float[np.ndarray, " n"], digits: int = 4) -> list[float | int | None]:
    """Short numbers for JSON."""
    return [number(value, digits) for value in values.tolist()]


def strip(frames: Float[np.ndarray, "time height width"]) -> str:
    """Frames of brightness 0 to 1, one above another, as the address of a PNG."""
    from PIL import Image

    pixels = np.rint(np.clip(frames, 0, 1) * 255).astype(np.uint8).reshape(-1, frames.shape[2])
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _anything(output: Output, k: int, regression: bool) -> bool:
    return bool(output.target_mask[:, k].any() or (not regression and output.mask[:, k].any()))


def _points(output: Output, k: int, regression: bool) -> dict[str, Any]:
    """What is known of a channel: the truth of a regression, or readings seen and readings withheld."""
    known = output.target_mask[:, k]
    if regression:
        return {"truth": _sparse(output.targets[:, k], known)}
    withheld = known & output.hidden[:, k]
    return {
        "seen": _sparse(output.values[:, k], output.mask[:, k]),
        "withheld": _sparse(output.targets[:, k], withheld),
    }


def _sparse(values: np.ndarray, mask: np.ndarray) -> dict[str, list[Any]]:
    return {"at": np.flatnonzero(mask).tolist(), "values": numbers(values[mask])}


def _said(output: Output, channels: Sequence[int], image_targets: bool) -> dict[str, Any]:
    said: dict[str, Any] = {"gain": None if output.gain is None else numbers(output.gain)}
    if image_targets:
        error = np.sqrt(((output.targets - output.mean) ** 2).mean(axis=(1, 2, 3)))
        return said | {"frames": strip(output.mean[:, 0]), "error": numbers(error)}
    said["mean"] = [numbers(output.mean[:, k]) for k in channels]
    said["std"] = None if output.std is None else [numbers(output.std[:, k], 3) for k in channels]
    return said
