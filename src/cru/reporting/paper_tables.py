"""The tables of the paper with our scores."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from cru.models.registry import MODELS, NAIVE, is_own
from cru.training.presets import PUBLISHED

INSIDE, BETTER, WORSE = "inside", "better", "worse"


class PrintedScore(NamedTuple):
    """A score of the paper, in the units of its table."""

    mean: float
    std: float
    quoted: bool = False  # whether the paper quotes it from Rubanova et al. (2019), who use another average
    one_step: bool = False  # whether it is a one-step-ahead score that the paper prints for interpolation

    @staticmethod
    def parse(numbers: Sequence[Any]) -> "PrintedScore":
        """Parse an entry of paper.toml."""
        mean, std, *kinds = numbers
        return PrintedScore(mean, std, "quoted" in kinds, "one-step" in kinds)


class OurScore(NamedTuple):
    """Mean and standard deviation of our runs, in the units of the table."""

    mean: float
    std: float | None  # None for a single run
    seeds: int
    outdated: bool = False  # on an earlier version of the data
    older_settings: bool = False  # with earlier settings of the preset

    @property
    def age(self) -> str:
        """Signs that mark runs on earlier data or with earlier settings."""
        return ("‡" if self.outdated else "") + ("§" if self.older_settings else "")


class TableCell(NamedTuple):
    """A model on a preset."""

    paper: PrintedScore | None
    ours: OurScore | None
    naive: bool
    beaten: bool = False  # whether a naive model on the same data has a lower error
    same_way: OurScore | None = None  # our score with the definition of the paper, if that differs from the table
    published: OurScore | None = None  # our runs with the published protocol
    times: tuple[float | None, float | None] = (None, None)  # epoch time relative to the CRU: paper, ours

    @property
    def mark(self) -> str:
        """Comparison of our score with that of the paper."""
        return self.compare(self.same_way if self.paper and self.paper.one_step else self.ours)

    @property
    def published_mark(self) -> str:
        """Comparison of our score with the published protocol."""
        return "" if self.paper and self.paper.one_step else self.compare(self.published)

    def compare(self, ours: OurScore | None) -> str:
        """Compare a score with the paper: inside two of its standard deviations, better (lower) or worse.

        A score that the paper quotes has no mark, because its average and the scale of its data differ.
        """
        if self.paper is None or ours is None or self.paper.quoted:
            return ""
        distance = ours.mean - self.paper.mean
        if abs(distance) <= 2 * self.paper.std + 1e-12:
            return INSIDE
        return BETTER if distance < 0 else WORSE  # NaN is worse


class Table(NamedTuple):
    """A table of the paper: ``cells[preset][model]``."""

    number: int
    title: str
    digits: int
    columns: dict[str, str]
    cells: dict[str, dict[str, TableCell]]

    @property
    def models(self) -> list[str]:
        """The rows: models of the paper in its order, other models, models of the user, naive models."""
        return in_order({model for column in self.cells.values() for model in column})


@cache
def paper() -> dict[str, Any]:
    """Read paper.toml, the numbers of the paper."""
    return tomllib.loads((files("cru") / "reporting" / "paper.toml").read_text(encoding="utf-8"))


def paper_presets() -> list[str]:
    """Return the presets of Tables 1, 2 and 3."""
    return list(dict.fromkeys(name for table in paper()["table"] for name in table["columns"]))


def in_paper(preset: str) -> bool:
    """Return whether a preset is in Tables 1, 2 or 3, with either protocol."""
    return preset.removesuffix(PUBLISHED) in paper_presets()


def timed_presets(number: int | None = None) -> list[str]:
    """Return the presets of the tables with times (1 and 2), or of one of them."""
    timed = [table["columns"] for table in paper()["table"] if table["timed"] and number in (None, table["number"])]
    return [name for columns in timed for name in columns]


def paper_seconds(preset: str, model: str) -> float | None:
    """Return the seconds of an epoch in the paper."""
    seconds = paper()["seconds"].get(preset.split("-")[0], {}).get(model)
    return None if seconds is None else float(seconds)


def tables(
    entries: Iterable[Mapping[str, Any]],
    *,
    epoch: str = "best",
    seconds: Mapping[tuple[str, str], float] | None = None,
) -> list[Table]:
    """Make Tables 1, 2 and 3 from the ledger. Only full runs with the settings of the presets count.

    Of several runs with one seed, the newest counts. A model without such a run is shown with earlier settings of its
    preset, or on an earlier version of the data.

    Args:
        entries: entries of the ledger, from `cru.reporting.ledger.compare_with_presets`.
        epoch: "best" (on the validation set) or "last" (as published).
        seconds: seconds of an epoch by preset and model.
    """
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in entries:
        if not entry["changed"] or entry["older_settings"]:
            found.setdefault((entry["preset"], entry["model"]), []).append(entry)
    runs = {key: _latest(group) for key, group in found.items()}
    return [_table(source, runs, epoch, seconds or {}) for source in paper()["table"]]


def _latest(entries: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Choose the runs of one model on one preset, by seed. All have the same settings and data."""

    def kind(entry: Mapping[str, Any]) -> tuple[bool, bool, list[str]]:
        return entry["older_settings"], entry["outdated"], [_setting(entry, name) for name in entry["changed"]]

    current = min(kind(entry)[:2] for entry in entries)
    shown = [entry for entry in entries if kind(entry)[:2] == current]
    return {entry["seed"]: entry for entry in shown if kind(entry) == kind(shown[-1])}


class OtherResult(NamedTuple):
    """Runs of an experiment outside the paper: means over seeds on the test set."""

    experiment: str
    model: str
    seeds: int
    mse: float | None  # None without targets
    hidden: float | None  # MSE of the targets that are not inputs
    nll: float | None
    coverage: float | None  # of the 90 % interval


def others(entries: Iterable[Mapping[str, Any]], *, epoch: str = "best") -> list[OtherResult]:
    """Collect the full runs outside the paper, with the settings that differ from their preset."""
    runs: dict[tuple[str, str], dict[tuple[int, int | None], Mapping[str, Any]]] = {}
    for entry in entries:
        if _is_other(entry):
            names = [name for name in entry["changed"] if name != "preset"]
            settings = ["other splits" if name == "data.seed" else _setting(entry, name) for name in names]
            title = ", ".join([str(entry["preset"]), *settings, *(["older data"] if entry["outdated"] else [])])
            data_seed = entry["settings"].get("data", {}).get("seed")
            runs.setdefault((title, entry["model"]), {})[entry["seed"], data_seed] = entry
    return [_other(title, model, list(chosen.values()), epoch) for (title, model), chosen in sorted(runs.items())]


def _is_other(entry: Mapping[str, Any]) -> bool:
    readable = "settings" not in entry["changed"]
    own = not in_paper(str(entry["preset"])) or entry["changed"] == ["data.seed"]
    return readable and not entry["shortened"] and own


def count_left_out(entries: Iterable[Mapping[str, Any]]) -> int:
    """Count the runs that are neither in the tables of the paper nor among the others."""
    return sum(bool(entry["changed"]) and not entry["older_settings"] and not _is_other(entry) for entry in entries)


def _other(title: str, model: str, entries: Sequence[Mapping[str, Any]], epoch: str) -> OtherResult:
    tests = [entry["scores"][epoch]["test"] for entry in entries]

    def mean(part: str, metric: str) -> float | None:
        values = [float(test[part][metric]) for test in tests if metric in test.get(part, {})]
        return _mean(values) if values else None

    scored = tests[0]["scored"]
    mse, nll = mean(scored, "mse"), mean(scored, "nll")
    return OtherResult(title, model, len(tests), mse, mean("hidden", "mse"), nll, mean(scored, "coverage90"))


def _setting(entry: Mapping[str, Any], name: str) -> str:
    if name == "splits":
        return "series of its own"
    found: Any = entry["settings"]
    for key in name.split("."):
        found = found.get(key, "default") if isinstance(found, Mapping) else "default"
    return f"{name.replace('model.options.', 'model.')} = {found}"  # as in --set


def _table(
    source: Mapping[str, Any],
    runs: Mapping[tuple[str, str], Any],
    epoch: str,
    seconds: Mapping[tuple[str, str], float],
) -> Table:
    cells: dict[str, dict[str, TableCell]] = {}
    for preset in source["columns"]:
        ours = {
            model: found
            for (name, model), chosen in runs.items()
            if name == preset and (model in MODELS or is_own(model))
            if (found := _summary(list(chosen.values()), source["metric"], source["scale"], epoch))
        }
        naive_runs = [chosen for (name, model), chosen in runs.items() if name == preset and model in NAIVE]
        cells[preset] = {}
        for model in in_order({*source[preset], *ours}):
            printed = PrintedScore.parse(source[preset][model]) if model in source[preset] else None
            naive, own = model in NAIVE, runs.get((preset, model), {})
            beaten = not naive and any(_loses(own, rule, source["metric"], epoch) for rule in naive_runs)
            same_way = None
            if printed and (printed.quoted or printed.one_step):
                name = preset.replace("interpolation", "one-step") if printed.one_step else preset
                taken = list(runs.get((name, model), {}).values())
                metric = "rubanova" if printed.quoted else source["metric"]
                same_way = _summary(taken, metric, source["scale"], epoch)
            published_runs = list(runs.get((preset + PUBLISHED, model), {}).values())
            published = _summary(published_runs, source["metric"], source["scale"], epoch)
            times: tuple[float | None, float | None] = (None, None)
            if source["timed"]:
                of_paper, of_ours = paper_seconds(preset, "cru"), seconds.get((preset, "cru"))
                times = _ratio(paper_seconds(preset, model), of_paper), _ratio(seconds.get((preset, model)), of_ours)
            cells[preset][model] = TableCell(printed, ours.get(model), naive, beaten, same_way, published, times)
    return Table(source["number"], source["title"], source["digits"], dict(source["columns"]), cells)


def _ratio(seconds: float | None, of_cru: float | None) -> float | None:
    return seconds / of_cru if seconds and of_cru else None


def in_order(models: Iterable[str]) -> list[str]:
    """Sort models: those of the paper in its order, other models, models of the user, naive models."""
    given = set(models)
    printed = dict.fromkeys(
        model for table in paper()["table"] for column in table["columns"] for model in table[column]
    )
    ours = [model for model in MODELS if model not in NAIVE]
    return [
        model for model in dict.fromkeys([*printed, *ours, *sorted(given - MODELS.keys()), *NAIVE]) if model in given
    ]


def _loses(own: Mapping[int, Any], rule: Mapping[int, Any], metric: str, epoch: str) -> bool:
    """Return whether a naive model is better on the same data."""

    ours, theirs = (_summary(list(runs.values()), metric, 1.0, epoch) for runs in (own, rule))
    same = {entry["outdated"] for entry in [*own.values(), *rule.values()]}
    return ours is not None and theirs is not None and len(same) == 1 and theirs.mean < ours.mean


def _scores(entry: Mapping[str, Any], epoch: str) -> dict[str, float]:
    test = entry["scores"][epoch]["test"]
    return {name: float(score) for name, score in test[test["scored"]].items()}


def _summary(entries: Sequence[Mapping[str, Any]], metric: str, scale: float, epoch: str) -> OurScore | None:
    """Summarise runs, or return None if no run has the score. Old runs do not have that of Rubanova et al."""
    entries = [entry for entry in entries if metric in _scores(entry, epoch)]
    if not entries:
        return None
    values = [_scores(entry, epoch)[metric] / scale for entry in entries]
    first = entries[0]
    std = _spread(values) if len(values) > 1 else None
    return OurScore(_mean(values), std, len(values), first["outdated"], first["older_settings"])


def _mean(values: Sequence[float]) -> float:
    """Compute the mean of scores. It is NaN if a run has diverged."""
    with np.errstate(all="ignore"):
        return float(np.mean(values))


def _spread(values: Sequence[float]) -> float:
    """Compute the standard deviation over seeds. It is NaN if a run has diverged."""
    with np.errstate(all="ignore"):
        return float(np.std(values, ddof=1))
