"""Multi-time attention against `torch.nn.functional.scaled_dot_product_attention`."""

import pytest
import torch
from torch.nn import functional as F

from cru.layers.time_attention import TimeAttention, TimeEmbedding


def problem(
    heads: int, size: float = 1.0
) -> tuple[TimeAttention, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    layer = TimeAttention(3, 5, embedding=8, num_heads=heads).double()
    with torch.no_grad():
        layer.query.weight.mul_(size)
    query, key = torch.randn(2, 7, 8).double(), torch.randn(2, 9, 8).double()
    mask = torch.rand(2, 9, 3) < 0.6
    mask[0, :, 1], mask[:, 4] = False, False
    return layer, query, key, torch.randn(2, 9, 3).double(), mask


@pytest.mark.parametrize("size", [1.0, 5.0])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_each_feature_is_attended_over_its_own_observations(heads: int, size: float) -> None:
    layer, query, key, values, mask = problem(heads, size)
    q = layer.query(query).view(2, 7, heads, -1).transpose(1, 2)
    k = layer.key(key).view(2, 9, heads, -1).transpose(1, 2)
    parts = []
    for d in range(3):
        v = values[:, None, :, d : d + 1].expand(2, heads, 9, 1)
        part = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :, d])
        parts.append(torch.where(mask[:, :, d].any(1)[:, None, None, None], part, 0.0))
    read = torch.cat(parts, -1)
    found = layer.read(layer.scores(query, key), values, mask)
    torch.testing.assert_close(found, read)
    torch.testing.assert_close(layer(query, key, values, mask), layer.output(read.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("heads", [1, 4])
def test_without_a_mask_it_is_plain_attention(heads: int) -> None:
    layer, query, key, values, _ = problem(heads)
    q = layer.query(query).view(2, 7, heads, -1).transpose(1, 2)
    k = layer.key(key).view(2, 9, heads, -1).transpose(1, 2)
    expected = F.scaled_dot_product_attention(q, k, values[:, None].expand(2, heads, 9, 3))
    torch.testing.assert_close(layer.read(layer.scores(query, key), values), expected)


def test_gradients_are_those_of_a_softmax() -> None:
    layer, query, key, values, mask = problem(2)
    mask[0, 0, 1] = True
    scores = layer.scores(query, key).detach()

    def gradient(read) -> torch.Tensor:
        leaf = scores.clone().requires_grad_()
        read(leaf).square().sum().backward()
        return leaf.grad

    def literal(leaf: torch.Tensor) -> torch.Tensor:
        each = leaf[..., None].masked_fill(~mask[:, None, None], -torch.inf).softmax(-2)
        return (each * values[:, None, None]).sum(-2)

    torch.testing.assert_close(gradient(lambda leaf: layer.read(leaf, values, mask)), gradient(literal))


def test_a_feature_with_tiny_weights_is_still_averaged() -> None:
    values, mask = torch.tensor([[[0.0], [2.0], [6.0]]]), torch.tensor([[[False], [True], [True]]])
    scores = torch.tensor([0.0, -100.0, -61.0]).view(1, 1, 1, 3)
    mask, values = torch.cat([mask, ~mask], -1), torch.cat([values, values], -1)  # another is seen at the first alone
    found = TimeAttention(2, 2, embedding=4).read(scores, values, mask)
    torch.testing.assert_close(found.flatten(), torch.tensor([6.0, 0.0]))


def test_huge_scores_and_nothing_observed_stay_finite() -> None:
    layer, query, key, values, mask = problem(2)
    layer, query, key, values = layer.float(), query.float(), key.float(), values.float()
    for observed in (mask, torch.zeros_like(mask)):
        leaf = (1e6 * key).requires_grad_()
        found = layer(1e3 * query, leaf, values, observed)
        found.sum().backward()
        assert torch.isfinite(found).all() and torch.isfinite(leaf.grad).all()


def test_the_embedding_is_one_line_and_sines() -> None:
    embed, times = TimeEmbedding(6), torch.rand(2, 5)
    weight, bias = embed.angles.weight[:, 0], embed.angles.bias
    found = embed(times)
    torch.testing.assert_close(found[..., 0], weight[0] * times + bias[0])
    for i in range(1, 6):
        torch.testing.assert_close(found[..., i], torch.sin(weight[i] * times + bias[i]))


def test_heads_must_share_the_embedding() -> None:
    with pytest.raises(ValueError, match="`embedding` must be a multiple of `num_heads`, got 10 and 4"):
        TimeAttention(3, 5, embedding=10, num_heads=4)
