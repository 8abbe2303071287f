"""The registry of models. To add a model, write its module and add one entry here."""

from dataclasses import fields
from importlib import import_module
from typing import Any, NamedTuple

from cru.errors import InputError, did_you_mean, literal
from cru.models.base import Model, Spec


class Entry(NamedTuple):
    """A registered model. Its module is imported at first use, so that a GRU does not load an ODE solver."""

    module: str
    name: str  # name of the class
    about: str
    title: str  # display name in tables and figures
    naive: bool = False  # whether it is a naive model
    package: str = "cru.models."

    @property
    def model(self) -> type[Model]:
        """The model class."""
        found: type[Model] = getattr(import_module(self.package + self.module), self.name)
        return found


MODELS = {
    "cru": Entry("kalman", "CRUModel", "Continuous Recurrent Unit", "CRU"),
    "f-cru": Entry("kalman", "FastCRUModel", "fast CRU, shared eigenvectors", "f-CRU"),
    "rkn": Entry("kalman", "RKNModel", "Recurrent Kalman Network", "RKN"),
    "rkn-dt": Entry("kalman", "RKNDeltaModel", "RKN with the gap as input", "RKN-Δt"),
    "gru": Entry("gru", "GRUModel", "gated recurrent unit", "GRU"),
    "gru-dt": Entry("gru", "GRUDeltaModel", "GRU with the gap as input", "GRU-Δt"),
    "gru-d": Entry("gru_d", "GRUDModel", "GRU with trained decay", "GRU-D"),
    "ode-rnn": Entry("ode_rnn", "ODERNNModel", "ODE between GRU updates", "ODE-RNN"),
    "latent-ode": Entry("latent_ode", "LatentODEModel", "variational autoencoder with an ODE", "Latent ODE"),
    "gru-ode-b": Entry("gru_ode_b", "GRUODEBModel", "continuous GRU, Bayesian update", "GRU-ODE-B"),
    "mtand": Entry("mtand", "MTANDModel", "attention over time", "mTAND"),
    "bi-cru": Entry("bidirectional", "BidirectionalCRUModel", "bidirectional CRU", "CRU, both sides"),
    "bi-f-cru": Entry("bidirectional", "BidirectionalFastCRUModel", "bidirectional f-CRU", "f-CRU, both sides"),
    "paired": Entry("paired", "PairedModel", "stacked paired CRU, exact filter", "paired CRU"),
    "paired-smoother": Entry("paired", "PairedSmootherModel", "stacked paired CRU, exact smoother", "paired smoother"),
    "mlp": Entry("mlp", "MLPModel", "network on each time point separately", "pointwise network"),
    "structural": Entry(
        "structural", "StructuralModel", "exact Gaussian model of each variable, smoother", "structural"
    ),
    "structural-filter": Entry(
        "structural", "StructuralFilterModel", "exact Gaussian model of each variable, filter", "structural filter"
    ),
    "corrected": Entry(
        "corrected", "CorrectedModel", "structural model with a correction network", "structural + network"
    ),
    "mean": Entry("naive", "Mean", "mean of the training set", "mean", naive=True),
    "series-mean": Entry("naive", "SeriesMean", "mean of the series so far", "series mean", naive=True),
    "last-value": Entry("naive", "LastValue", "last observation", "last value", naive=True),
    "linear": Entry("naive", "Linear", "linear interpolation", "linear", naive=True),
    "blend": Entry("naive", "Blend", "weighted mean of last value and means", "blend", naive=True),
    "seasonal-naive": Entry("naive", "SeasonalNaive", "value one period ago", "seasonal naive", naive=True),
    "climatology": Entry("naive", "Climatology", "seasonal mean plus offset of the series", "climatology", naive=True),
}


NAIVE = tuple(name for name, entry in MODELS.items() if entry.naive)


def create(name: str, spec: Spec, **options: Any) -> Model:
    """Create a model by its name.

    >>> from cru.models import Spec, create
    >>> spec = Spec(input_shape=(5,), target_shape=(5,), time_scale=0.3)
    >>> create("cru", spec, hidden_size=10).num_parameters
    15135

    Args:
        name: a name in `MODELS`, or "module:Class" for your own class.
        spec: description of the data.
        options: options of the config of the model.

    Raises:
        ValueError: the name or an option is unknown or not valid, or the model does not fit the task.
    """
    model = entry(name).model
    if spec.causal and not model.causal:
        raise ValueError(
            f"{name!r} uses later inputs, which a causal task such as one-step-ahead forbids. Use a model with "
            "`causal` = True, such as 'cru'."
        )
    known = [field.name for field in fields(model.Config)]
    for option in options:
        if option not in known:
            raise ValueError(f"{name!r} has no option {option!r}; {did_you_mean(option, known)}")
    return model(spec, model.Config(**options))


def entry(name: str) -> Entry:
    """Return the entry of a registered model or of your own class, "module:Class".

    Raises:
        ValueError: the name is unknown. The message suggests the closest name.
    """
    if is_own(name):
        return _own_entry(name)
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r}; {did_you_mean(name, MODELS)}")
    return MODELS[name]


def is_own(name: str) -> bool:
    """Return whether ``name`` denotes a class outside this library, "module:Class"."""
    return ":" in name


def check_loadable(name: str, source: object, *, allow_code: bool) -> None:
    """Check the name of a model in a file, because the import of a model outside `MODELS` runs code.

    Args:
        name: the name.
        source: the file, for error messages.
        allow_code: whether the caller allows a model outside `MODELS`.

    Raises:
        InputError: the name is not allowed.
        ValueError: the name is unknown.
    """
    if is_own(name) and not allow_code:
        effect = f"which would import and run the module {name.partition(':')[0]!r:.100}"
        rule = literal(f"be set, because {source} names the model {name!r:.100}, {effect}")
        raise InputError("allow_code", rule, hint="If you trust it, give {allow_code=True}.")
    if not is_own(name) and name not in MODELS:
        raise ValueError(f"{source} names the model {name!r:.100}, which is unknown; {did_you_mean(name, MODELS)}")


def _own_entry(name: str) -> Entry:
    module, _, own = name.partition(":")
    try:
        found = getattr(import_module(module), own)
    except Exception as error:  # the import of another module can raise anything
        raise ValueError(f"{name!r} must be module:Class, a class that can be imported: {error}.") from error
    if not (isinstance(found, type) and issubclass(found, Model)):
        raise ValueError(f"{name!r} must be a subclass of cru.models.Model.")
    return Entry(module, own, "your own model", name, package="")
