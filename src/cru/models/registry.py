"""The registry of models. To add a model, write its module and add one entry here."""

from dataclasses import fields
from importlib import import_module
from typing import Any, NamedTuple

from cru.errors import did_you_mean
from cru.models.base import Model, Spec


class Entry(NamedTuple):
    """A registered model. Its module is imported when it is first made, so that a GRU does not load a solver."""

    module: str
    name: str  # of the class
    about: str
    title: str  # in tables and figures
    naive: bool = False  # a rule without training, against which models are compared
    package: str = "cru.models."

    @property
    def model(self) -> type[Model]:
        """The class."""
        found: type[Model] = getattr(import_module(self.package + self.module), self.name)
        return found


MODELS = {
    "cru": Entry("kalman", "CRUModel", "Continuous Recurrent Unit", "CRU"),
    "f-cru": Entry("kalman", "FastCRUModel", "fast CRU, shared eigenvectors", "f-CRU"),
    "rkn": Entry("kalman", "RKNModel", "Recurrent Kalman Network", "RKN"),
    "rkn-dt": Entry("kalman", "RKNDeltaModel", "RKN that sees the gap", "RKN-Δt"),
    "gru": Entry("gru", "GRUModel", "gated recurrent unit", "GRU"),
    "gru-dt": Entry("gru", "GRUDeltaModel", "GRU that sees the gap", "GRU-Δt"),
    "gru-d": Entry("gru_d", "GRUDModel", "GRU with trained decay", "GRU-D"),
    "ode-rnn": Entry("ode_rnn", "ODERNNModel", "ODE between GRU updates", "ODE-RNN"),
    "latent-ode": Entry("latent_ode", "LatentODEModel", "variational, an ODE from a code", "Latent ODE"),
    "gru-ode-b": Entry("gru_ode_b", "GRUODEBModel", "continuous GRU, Bayesian update", "GRU-ODE-B"),
    "mtand": Entry("mtand", "MTANDModel", "attention over time", "mTAND"),
    "bi-cru": Entry("bidirectional", "BidirectionalCRUModel", "CRU from both sides", "CRU, both sides"),
    "bi-f-cru": Entry("bidirectional", "BidirectionalFastCRUModel", "f-CRU from both sides", "f-CRU, both sides"),
    "paired": Entry("paired", "PairedModel", "stacked paired CRU, exact filter", "paired CRU"),
    "paired-smoother": Entry("paired", "PairedSmootherModel", "stacked paired CRU, exact smoother", "paired smoother"),
    "mlp": Entry("mlp", "MLPModel", "a network on each time point by itself", "pointwise network"),
    "structural": Entry(
        "structural", "StructuralModel", "exact Gaussian model of each variable, both sides", "structural"
    ),
    "structural-filter": Entry(
        "structural", "StructuralFilterModel", "the same, from the past alone", "structural filter"
    ),
    "corrected": Entry(
        "corrected", "CorrectedModel", "structural model, corrected by a network", "structural + network"
    ),
    "mean": Entry("naive", "Mean", "mean of the training set", "mean", naive=True),
    "series-mean": Entry("naive", "SeriesMean", "mean of the series so far", "series mean", naive=True),
    "last-value": Entry("naive", "LastValue", "last value seen", "last value", naive=True),
    "linear": Entry("naive", "Linear", "linear interpolation", "linear", naive=True),
    "blend": Entry("naive", "Blend", "last value, series mean and mean, weighted", "blend", naive=True),
    "seasonal-naive": Entry("climatology", "SeasonalNaive", "the value one period ago", "seasonal naive", naive=True),
    "climatology": Entry(
        "climatology", "Climatology", "season of the training set and the series' offset", "climatology", naive=True
    ),
}


NAIVE = tuple(name for name, entry in MODELS.items() if entry.naive)


def create(name: str, spec: Spec, **options: Any) -> Model:
    """A model by its name, for the data that ``spec`` describes, with ``options`` of the model's own config.

    The name is one of `MODELS`, or "module:Class" for a class of your own.

    >>> spec = Spec(input_shape=(5,), target_shape=(5,), time_scale=0.3)
    >>> create("cru", spec, hidden_size=10).num_parameters
    15135
    """
    model = entry(name).model
    if spec.causal and not model.causal:
        raise ValueError(
            f"{name!r} looks at later inputs, which a causal task such as one-step-ahead forbids: take a model with "
            "`causal` = True, such as 'cru'."
        )
    known = [field.name for field in fields(model.Config)]
    for option in options:
        if option not in known:
            raise ValueError(f"{name!r} has no option {option!r}; {did_you_mean(option, known)}")
    return model(spec, model.Config(**options))


def entry(name: str) -> Entry:
    """The entry for ``name``, or for a class of your own, "module:Class"; an unknown name gets the closest match."""
    if is_own(name):
        return _own_entry(name)
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r}; {did_you_mean(name, MODELS)}")
    return MODELS[name]


def is_own(name: str) -> bool:
    """Whether ``name`` is that of a class outside this library, "module:Class"."""
    return ":" in name


def check_loadable(name: str, source: object, *, allow_code: bool) -> None:
    """Refuse a name that a file gives, unless it is in `MODELS` or the caller allows code: an import runs code."""
    if is_own(name) and not allow_code:
        raise ValueError(
            f"{source} names the model {name!r:.100}, which would import and run the module "
            f"{name.partition(':')[0]!r:.100}. If you trust it, allow it with allow_code=True (--allow-code)."
        )
    if not is_own(name) and name not in MODELS:
        raise ValueError(f"{source} names the model {name!r:.100}, which there is not; {did_you_mean(name, MODELS)}")


def _own_entry(name: str) -> Entry:
    module, _, own = name.partition(":")
    try:
        found = getattr(import_module(module), own)
    except Exception as error:  # whatever a module of one's own may raise
        raise ValueError(f"{name!r} must be module:Class, a class that can be imported: {error}.") from error
    if not (isinstance(found, type) and issubclass(found, Model)):
        raise ValueError(f"{name!r} must be a subclass of cru.models.Model.")
    return Entry(module, own, "a model of your own", name, package="")
