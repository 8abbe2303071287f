"""The paper's tables with our numbers beside the printed ones."""

import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from cru.models.registry import MODELS, NAIVE, is_own

_ORDER = ["mtand", "rkn", "rkn-dt", "gru", "gru-dt", "gru-d", "latent-ode", "ode-rnn", "gru-ode-b", "f-cru", "cru"]
_OURS = [model for model in MODELS if model not in (*_ORDER, *NAIVE)]  # past the paper
PUBLISHED = "-published"  # the end of the names of presets with the published protocol
INSIDE, BETTER, WORSE = "inside", "better", "worse"


class Printed(NamedTuple):
    """A number of the paper, in the units of its table."""

    mean: float
    std: float
    quoted: bool = False  # by the paper, from Rubanova et al. (2019), who average otherwise
    one_step: bool = False  # a score one step ahead, printed for interpolation

    @staticmethod
    def parse(numbers: Sequence[Any]) -> "Printed":
        """From an entry of paper.toml."""
        mean, std, *kinds = numbers
        return Printed(mean, std, "quoted" in kinds, "one-step" in kinds)


class Ours(NamedTuple):
    """Mean and standard deviation of our runs with the paper's settings, in the same units."""

    mean: float
    std: float | None  # None for a single run
    seeds: int
    outdated: bool = False  # on an earlier version of the data


class Cell(NamedTuple):
    """A model on an experiment."""

    paper: Printed | None
    ours: Ours | None
    naive: bool
    beaten: bool = False  # by a naive model on the same data
    same_way: Ours | None = None  # our score taken as the paper's was, where that is another than the table's
    published: Ours | None = None  # our runs with the published protocol
    times: tuple[float | None, float | None] = (None, None)  # an epoch in units of the CRU's: the paper's, ours

    @property
    def mark(self) -> str:
        """How ours compares with the paper's."""
        return self.compare(self.same_way if self.paper and self.paper.one_step else self.ours)

    @property
    def published_mark(self) -> str:
        """The same for the published protocol."""
        return "" if self.paper and self.paper.one_step else self.compare(self.published)

    def compare(self, ours: Ours | None) -> str:
        """Inside two of the paper's standard deviations, better, or worse; lower is better.

        A number that the paper quotes has no mark: it is another average, of data on another scale.
        """
        if self.paper is None or ours is None or self.paper.quoted:
            return ""
        distance = ours.mean - self.paper.mean
        if abs(distance) <= 2 * self.paper.std + 1e-12:
            return INSIDE
        return BETTER if distance < 0 else WORSE  # also a NaN


class Table(NamedTuple):
    """One of the paper's tables: ``cells[preset][model]``."""

    number: int
    title: str
    digits: int
    columns: dict[str, str]
    cells: dict[str, dict[str, Cell]]

    @property
    def models(self) -> list[str]:
        """Rows: the paper's models in its order, then ours, a user's own and the naive ones that have been run."""
        return _in_order({model for column in self.cells.values() for model in column})


@cache
def paper() -> dict[str, Any]:
    """The numbers that the paper printed, as in paper.toml."""
    return tomllib.loads((files("cru") / "evaluation" / "paper.toml").read_text(encoding="utf-8"))


def paper_presets() -> list[str]:
    """The experiments of Tables 1, 2 and 3."""
    return list(dict.fromkeys(name for table in paper()["table"] for name in table["columns"]))


def in_paper(preset: str) -> bool:
    """Whether an experiment is of Tables 1, 2 or 3, with either protocol."""
    return preset.removesuffix(PUBLISHED) in paper_presets()


def paper_seconds(preset: str, model: str) -> float | None:
    """What an epoch took in the paper."""
    seconds = paper()["seconds"].get(preset.split("-")[0], {}).get(model)
    return None if seconds is None else float(seconds)


def tables(
    entries: Iterable[Mapping[str, Any]],
    *,
    epoch: str = "best",
    seconds: Mapping[tuple[str, str], float] | None = None,
) -> list[Table]:
    """Tables 1, 2 and 3 from the ledger. Only runs with exactly the paper's settings count; of several with one seed
    the newest. A run on an earlier version of the data counts where a model has no other. ``epoch`` is "best" (chosen
    on the validation set) or "last" (as published). ``seconds`` are those of an epoch, by
    experiment and model, measured apart."""
    runs: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    for entry in sorted(entries, key=lambda entry: not entry["outdated"]):
        if not entry["changed"]:
            found = runs.setdefault((entry["preset"], entry["model"]), {})
            if not entry["outdated"] and any(one["outdated"] for one in found.values()):
                found.clear()
            found[entry["seed"]] = entry
    return [_table(source, runs, epoch, seconds or {}) for source in paper()["table"]]


class Other(NamedTuple):
    """Runs of an experiment that the paper does not have: means over seeds on the test set."""

    experiment: str
    model: str
    seeds: int
    mse: float | None  # None where there was no target to score
    hidden: float | None  # where nothing was shown
    nll: float | None
    coverage: float | None  # of the 90 % interval


def others(entries: Iterable[Mapping[str, Any]], *, epoch: str = "best") -> list[Other]:
    """Every full run outside the paper's experiments, with the settings in which it differs from its preset."""
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
    """Runs that stand neither in the paper's tables nor among the others."""
    return sum(bool(entry["changed"]) and not _is_other(entry) for entry in entries)


def _other(title: str, model: str, entries: Sequence[Mapping[str, Any]], epoch: str) -> Other:
    tests = [entry["scores"][epoch]["test"] for entry in entries]

    def mean(part: str, metric: str) -> float | None:
        values = [test[part][metric] for test in tests if metric in test.get(part, {})]
        return statistics.fmean(values) if values else None

    scored = tests[0]["scored"]
    mse, nll = mean(scored, "mse"), mean(scored, "nll")
    return Other(title, model, len(tests), mse, mean("hidden", "mse"), nll, mean(scored, "coverage90"))


def _setting(entry: Mapping[str, Any], name: str) -> str:
    if name == "splits":
        return "series of its own"
    found: Any = entry["settings"]
    for key in name.split("."):
        found = found.get(key, "default") if isinstance(found, Mapping) else "default"
    return f"{name.replace('model.options.', 'model.')} = {found}"  # as --set takes it


def _table(
    source: Mapping[str, Any],
    runs: Mapping[tuple[str, str], Any],
    epoch: str,
    seconds: Mapping[tuple[str, str], float],
) -> Table:
    cells: dict[str, dict[str, Cell]] = {}
    for preset in source["columns"]:
        ours = {
            model: found
            for (name, model), chosen in runs.items()
            if name == preset and (model in MODELS or is_own(model))
            if (found := _summary(list(chosen.values()), source["metric"], source["scale"], epoch))
        }
        naive_runs = [chosen for (name, model), chosen in runs.items() if name == preset and model in NAIVE]
        cells[preset] = {}
        for model in _in_order({*source[preset], *ours}):
            printed = Printed.parse(source[preset][model]) if model in source[preset] else None
            naive, own = model in NAIVE, runs.get((preset, model), {})
            beaten = not naive and any(_loses(own, rule, source["metric"], epoch) for rule in naive_runs)
            same_way = None
            if printed and (printed.quoted or printed.one_step):
                name = preset.replace("interpolation", "one-step") if printed.one_step else preset
                taken = list(runs.get((name, model), {}).values())
                metric = "rubanova" if printed.quoted else source["metric"]
                same_way = _summary(taken, metric, source["scale"], epoch)
            alike = list(runs.get((preset + PUBLISHED, model), {}).values())
            published = _summary(alike, source["metric"], source["scale"], epoch)
            times = (
                _ratio(paper_seconds(preset, model), paper_seconds(preset, "cru")),
                _ratio(seconds.get((preset, model)), seconds.get((preset, "cru"))),
            )
            cells[preset][model] = Cell(printed, ours.get(model), naive, beaten, same_way, published, times)
    return Table(source["number"], source["title"], source["digits"], dict(source["columns"]), cells)


def _ratio(seconds: float | None, of_cru: float | None) -> float | None:
    return seconds / of_cru if seconds and of_cru else None


def _in_order(models: Iterable[str]) -> list[str]:
    """Those of the paper, ours, a user's own, and the naive ones."""
    given = set(models)
    return [model for model in [*_ORDER, *_OURS, *sorted(filter(is_own, given)), *NAIVE] if model in given]


def _loses(own: Mapping[int, Any], rule: Mapping[int, Any], metric: str, epoch: str) -> bool:
    """Whether a naive model is better on the same data."""

    def score(runs: Mapping[int, Any]) -> float:
        return statistics.fmean(_score(entry, metric, epoch) for entry in runs.values())

    same = {entry["outdated"] for entry in [*own.values(), *rule.values()]}
    return bool(own) and len(same) == 1 and score(rule) < score(own)


def _score(entry: Mapping[str, Any], metric: str, epoch: str) -> float:
    return float(_scores(entry, epoch)[metric])


def _scores(entry: Mapping[str, Any], epoch: str) -> Mapping[str, float]:
    test = entry["scores"][epoch]["test"]
    scores: Mapping[str, float] = test[test["scored"]]
    return scores


def _summary(entries: Sequence[Mapping[str, Any]], metric: str, scale: float, epoch: str) -> Ours | None:
    """None where no run has the score: older ones lack Rubanova's average."""
    entries = [entry for entry in entries if metric in _scores(entry, epoch)]
    if not entries:
        return None
    values = [_score(entry, metric, epoch) / scale for entry in entries]
    std = statistics.stdev(values) if len(values) > 1 else None
    return Ours(statistics.fmean(values), std, len(values), entries[0]["outdated"])
