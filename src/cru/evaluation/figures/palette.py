"""One look for each model, in pictures and on pages: colours that every eye tells apart, and dashes for print."""

from typing import NamedTuple

BLUE, SKY, GREEN, ORANGE, RED, PINK = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7"  # Okabe & Ito
VIOLET = "#7A5CC0"
INK, GREY = "#222222", "#767676"


class Look(NamedTuple):
    """The name as written, a colour on white paper and one on a dark screen, and the dashes of a line."""

    name: str
    light: str
    dark: str
    dash: tuple[float, ...] = ()


_DASH, _DOT = (5.0, 2.0), (1.5, 1.5)
LOOKS = {
    "cru": Look("CRU", BLUE, "#5AB4F0"),
    "f-cru": Look("f-CRU", SKY, "#A6D8F7", _DASH),
    "bi-cru": Look("CRU, both sides", BLUE, "#5AB4F0", _DOT),
    "bi-f-cru": Look("f-CRU, both sides", SKY, "#A6D8F7", _DOT),
    "paired": Look("paired CRU", VIOLET, "#B9A3F0"),
    "paired-smoother": Look("paired smoother", VIOLET, "#B9A3F0", _DASH),
    "structural": Look("structural", "#117733", "#66C285"),
    "structural-filter": Look("structural filter", "#117733", "#66C285", _DASH),
    "mlp": Look("pointwise network", "#882255", "#D98CB3"),
    "corrected": Look("structural + network", "#882255", "#D98CB3", _DASH),
    "rkn": Look("RKN", GREEN, "#3CC9A0", _DOT),
    "rkn-dt": Look("RKN-Δt", GREEN, "#3CC9A0", _DASH),
    "gru": Look("GRU", ORANGE, "#F5BE4E", _DOT),
    "gru-dt": Look("GRU-Δt", ORANGE, "#F5BE4E"),
    "gru-d": Look("GRU-D", ORANGE, "#F5BE4E", _DASH),
    "ode-rnn": Look("ODE-RNN", PINK, "#E9A3CB"),
    "latent-ode": Look("Latent ODE", PINK, "#E9A3CB", _DASH),
    "gru-ode-b": Look("GRU-ODE-B", PINK, "#E9A3CB", _DOT),
    "mtand": Look("mTAND", RED, "#FF8A4C"),
    "mean": Look("mean", GREY, "#A5A5A5", _DOT),
    "series-mean": Look("series mean", GREY, "#A5A5A5", _DASH),
    "last-value": Look("last value", GREY, "#A5A5A5"),
    "linear": Look("linear", "#4D4D4D", "#CFCFCF", _DOT),
    "seasonal-naive": Look("seasonal naive", "#999933", "#CCCC77"),
    "blend": Look("blend", "#4D4D4D", "#CFCFCF", _DASH),
    "climatology": Look("climatology", "#4D4D4D", "#CFCFCF"),
}


def look(model: str) -> Look:
    """The look of a model; one that is not known here is drawn in ink."""
    return LOOKS.get(model, Look(model, INK, "#EEEEEE"))
