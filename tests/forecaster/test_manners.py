"""The manners of scikit-learn, by its own checks."""

import pytest
import sklearn.exceptions
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

import cru
from cru import Forecaster

# They fit and predict arrays of numbers: here X is a table with a column of times, which an array has not.
NEED_ARRAYS = "X is a table with a column of times"


def test_the_checks_of_scikit_learn():
    with pytest.warns() as _:  # it warns of every check that is skipped
        found = check_estimator(Forecaster(), on_fail=None, on_skip="warn")
    failed = {result["check_name"]: str(result["exception"]) for result in found if result["status"] == "failed"}
    passed = {result["check_name"] for result in found if result["status"] == "passed"}
    other = {name: said for name, said in failed.items() if "`time`" not in said and "'time'" not in said}
    assert not other, f"{NEED_ARRAYS}: everything else must pass"
    assert {"check_estimator_cloneable", "check_get_params_invariance", "check_set_params"} <= passed, sorted(passed)


def test_parameters():
    model = Forecaster("f-cru", epochs=3)
    assert model.get_params()["epochs"] == 3 and model.set_params(epochs=5) is model and model.epochs == 5
    with pytest.raises(ValueError, match="no parameter 'epoch'; did you mean 'epochs'?"):
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
