"""What a series has shown, against numpy and plain loops."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from cru.functional.carry_forward import last_observation, next_observation, running_mean


@given(st.integers(0, 10_000), st.sampled_from([(2,), (1, 2, 2)]))
def test_against_a_loop(seed: int, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(2, 7, *shape, generator=generator)
    mask = torch.rand(2, 7, *(shape if len(shape) == 1 else (1, 1, 1)), generator=generator) < 0.4
    full = mask.expand_as(values)
    last, following, (mean, known) = (
        last_observation(values, mask),
        next_observation(values, mask),
        running_mean(values, mask),
    )
    for index in full[:, 0].nonzero().tolist() + (~full[:, 0]).nonzero().tolist():
        series, *entry = index
        for t in range(7):
            where = (series, slice(None), *entry)
            steps = full[where].nonzero().flatten()
            before, after = steps[steps <= t], steps[steps >= t]
            at = (series, t, *entry)
            assert last.known[at] == known[at] == (len(before) > 0)
            assert following.known[at] == (len(after) > 0)
            if len(before):
                assert last.step[at] == before[-1]
                assert last.value[at] == values[where][before[-1]]
                torch.testing.assert_close(mean[at], values[where][before].mean())
            if len(after):
                assert following.step[at] == after[0]
                assert following.value[at] == values[where][after[0]]
