import pytest
import torch

from cru.functional import positive

NAMES = ["softplus", "exp", "elu+1", "square", "relu"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [1e-3, 0.1, 1.0, 10.0])
def test_a_parameter_starts_where_it_should(name: str, value: float) -> None:
    map_ = positive(name)
    torch.testing.assert_close(map_.forward(map_.start(value, 3)), torch.full((3,), value))


@pytest.mark.parametrize("name", NAMES)
def test_never_negative(name: str) -> None:
    assert torch.all(positive(name).forward(torch.linspace(-20, 20, 401)) >= 0)


def test_a_misspelt_name_gets_the_closest_match() -> None:
    with pytest.raises(ValueError, match="did you mean 'softplus'"):
        positive("softpuls")
