"""The manners of scikit-learn, by its own checks."""

import numpy as np
import pandas as pd
import pytest
import sklearn.exceptions
from jaxtyping import TypeCheckError
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_array

import cru
from cru import Forecaster

NOT_APPLICABLE = {
    "check_fit2d_1sample": "wants the words 'one sample'; a table of one observation is refused in words of its own",
    "check_fit2d_1feature": "has ten observations, too few to train and calibrate on, whatever the number of features",
}


class OnArrays(Forecaster):
    """The checks fit and predict arrays of numbers; here they are tables, the number of a row being its time."""

    def fit(self, X, y=None):
        return super().fit(self.table(X), time="row")

    def predict(self, X):
        self._check_fitted()
        table = self.table(X)
        return super().predict(table, at=table["row"])["mean"].to_numpy().reshape(len(table), -1)[:, 0]

    def score(self, X, y=None):
        return super().score(self.table(X))

    @staticmethod
    def table(X):
        X = check_array(X, ensure_all_finite="allow-nan").astype(float)
        return pd.DataFrame({"row": np.arange(len(X))} | {f"x{k}": column for k, column in enumerate(X.T)})

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags


@pytest.mark.filterwarnings("ignore")  # it warns of each check that is skipped or known not to apply
def test_the_checks_of_scikit_learn(short_fit):
    model = OnArrays("mean", progress=False)
    results = check_estimator(model, expected_failed_checks=NOT_APPLICABLE, on_fail=None, on_skip=None)
    by_status = {status: [r for r in results if r["status"] == status] for status in ("passed", "failed", "xfail")}
    # One sets parameters of every kind, which only the run-time types of these tests refuse.
    wrong = [r for r in by_status["failed"] if not isinstance(r["exception"], TypeCheckError)]
    assert [(r["check_name"], r["exception"]) for r in wrong] == []
    assert {r["check_name"] for r in by_status["xfail"]} == set(NOT_APPLICABLE) and len(by_status["passed"]) > 25


@pytest.mark.filterwarnings("ignore")
def test_as_it_is_it_says_that_it_takes_no_arrays():
    assert not Forecaster().__sklearn_tags__().input_tags.two_d_array
    results = check_estimator(Forecaster(), on_fail=None, on_skip=None)
    assert [r["check_name"] for r in results if r["status"] == "failed"] == []


def test_parameters():
    model = Forecaster("f-cru", epochs=3)
    assert model.get_params()["epochs"] == 3 and model.set_params(epochs=5) is model and model.epochs == 5
    with pytest.raises(ValueError, match="no parameter 'epoch'; did you mean 'epochs'"):
        model.set_params(epoch=1)
    assert repr(model) == "Forecaster(epochs=5, model='f-cru')"


def test_a_clone_has_the_parameters_and_has_learned_nothing(repeater):
    copy = clone(repeater)
    assert copy.get_params() == repeater.get_params() and not hasattr(copy, "model_")


def test_before_fit_it_refuses(table):
    model = Forecaster()
    for call in (
        lambda: model.predict(table, at=[1]),
        lambda: model.forecast(horizon="1D"),
        lambda: model.impute(table),
        lambda: model.sample(1, horizon="1D"),
        lambda: model.score(table),
        lambda: model.save("x"),
    ):
        with pytest.raises(sklearn.exceptions.NotFittedError, match="is not fitted yet: call `fit`"):
            call()
    assert issubclass(cru.errors.NotFittedError, ValueError) and issubclass(cru.errors.NotFittedError, AttributeError)


def test_what_is_learned_ends_in_an_underscore(repeater):
    learned = set(vars(repeater)) - set(repeater.get_params())
    assert learned and all(name.endswith("_") for name in learned)
