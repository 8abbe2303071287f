"""The networks of appendix D, against their description."""

import pytest
import torch
from torch import nn

from cru.layers import ConvDecoder, ConvEncoder, MLPEncoder, mlp_decoder, tanh_decoder
from cru.layers.encoders import apply_where, features_of


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_sizes_are_those_of_the_paper() -> None:
    assert count(MLPEncoder(37)) == (37 * 50 + 50) + 2 * (50 * 50 + 50) + 3 * 100
    assert count(mlp_decoder(20, 37)) == (20 * 50 + 50) + 2 * (50 * 50 + 50) + 3 * 100 + (50 * 37 + 37)
    assert count(tanh_decoder(30, 2)) == (30 * 30 + 30) + (30 * 2 + 2)
    convolutions = (5 * 5 * 12 + 12) + (3 * 3 * 12 * 12 + 12)
    assert count(ConvEncoder((1, 24, 24))) == convolutions + (12 * 3 * 3 * 30 + 30)
    assert count(ConvEncoder((1, 24, 24), norm=True)) == count(ConvEncoder((1, 24, 24))) + 2 * 24
    transposed = (5 * 5 * 16 * 16 + 16) + (3 * 3 * 16 * 12 + 12) + (2 * 2 * 12 + 1)
    assert count(ConvDecoder(30, norm=False)) == (30 * 144 + 144) + transposed


@pytest.mark.parametrize("norm", [False, True])
def test_pictures_in_pictures_out(norm: bool) -> None:
    torch.manual_seed(0)
    features = ConvEncoder((1, 24, 24), norm=norm)(torch.rand(5, 1, 24, 24))
    torch.testing.assert_close(features.norm(dim=-1), torch.ones(5))
    assert ConvDecoder(30, norm=norm)(features).shape == (5, 1, 24, 24)


@pytest.mark.parametrize("norm", [False, True])
def test_the_quick_encoder_is_the_one_of_the_appendix(norm: bool) -> None:
    """Channels last, in chunks, pooled before the ReLU: the same numbers and gradients as written down plainly."""
    torch.manual_seed(0)
    encoder = ConvEncoder((1, 24, 24), norm=norm).double()
    first, norm_1, _, _, second, norm_2, *_ = encoder.layers
    x = torch.rand(150, 1, 24, 24, dtype=torch.float64)
    h = nn.functional.conv2d(x, first.weight, first.bias, padding=2)
    h = nn.functional.max_pool2d(norm_1(h).relu(), 2)
    h = nn.functional.conv2d(h, second.weight, second.bias, padding=1, stride=2)
    h = nn.functional.max_pool2d(norm_2(h).relu(), 2)
    expected = nn.functional.normalize(encoder.output(h.flatten(1)).relu(), dim=-1)
    found = encoder(x)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(found)
    wanted = list(encoder.parameters())
    gradients = [torch.autograd.grad((weights * out).sum(), wanted) for out in (found, expected)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_the_norm_is_over_channel_height_and_width_with_a_scale_for_each_channel() -> None:
    torch.manual_seed(0)
    norm = ConvEncoder((1, 24, 24), norm=True).layers[1]
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(3, 12, 5, 5)
    plain = nn.functional.layer_norm(x, (12, 5, 5))
    torch.testing.assert_close(norm(x), plain * norm.weight[:, None, None] + norm.bias[:, None, None])


@pytest.mark.parametrize("shape", [(1, 7, 7), (3, 30, 17), (1, 24, 24)])
def test_pictures_of_any_size_can_be_encoded(shape: tuple[int, int, int]) -> None:
    assert features_of(ConvEncoder(shape), shape) == 30


def test_pictures_too_small_and_encoders_of_a_wrong_kind_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 7 x 7"):
        ConvEncoder((1, 6, 6))
    with pytest.raises(ValueError, match=r"must map \(n, 3\) to \(n, features\)"):
        features_of(nn.Unflatten(1, (1, 3)), (3,))


class Reshape(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0], -1)  # ambiguous where there are no rows


@pytest.mark.parametrize("first", [Reshape(), nn.BatchNorm1d(3), nn.Identity()])
def test_an_encoder_never_sees_a_batch_without_rows(first: nn.Module) -> None:
    encoder = nn.Sequential(first, nn.Linear(3, 4))
    values = torch.randn(2, 5, 3)
    features = apply_where(encoder, values, torch.zeros(2, 5, dtype=torch.bool))
    assert torch.equal(features, torch.zeros(2, 5, 4))
    features.sum().backward()
    assert not encoder[1].weight.grad.any()
    assert not any(buffer.any() for name, buffer in first.named_buffers() if name != "running_var")


def test_the_modes_of_its_parts_stay_as_they_were() -> None:
    encoder = nn.Sequential(nn.BatchNorm1d(3).eval(), nn.Dropout(), nn.Linear(3, 4))
    features_of(encoder, (3,))
    assert [part.training for part in encoder] == [False, True, True]


def test_only_what_is_observed_is_encoded() -> None:
    seen = []
    encoder = nn.Linear(3, 4)
    encoder.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].shape[0]))
    values = torch.randn(2, 3, 3)
    observed = torch.tensor([[True, False, True], [False, False, True]])
    features = apply_where(encoder, values, observed)
    assert seen == [3]
    torch.testing.assert_close(features, torch.where(observed[..., None], encoder(values), 0.0))
