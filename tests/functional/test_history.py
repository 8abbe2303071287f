"""Time since the last observation and its value, against a loop."""

import torch

from cru.functional.history import last_step, last_value, since_last


def test_history_is_the_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(3, 8, 2, generator=generator) < 0.4
    values = torch.randn(3, 8, 2, generator=generator)
    times = torch.rand(3, 8, generator=generator, dtype=torch.float64).cumsum(1) + 5
    default = torch.tensor([7.0, -7.0])
    since, value, step = since_last(times, mask), last_value(values, mask, default), last_step(mask)
    for b in range(3):
        for d in range(2):
            elapsed, last, position = 0.0, float(default[d]), -1
            for t in range(8):
                if t > 0:  # eq. 7 of Che et al. 2018
                    gap = float(times[b, t] - times[b, t - 1])
                    elapsed = gap if mask[b, t - 1, d] else gap + elapsed
                if mask[b, t, d]:
                    last, position = float(values[b, t, d]), t
                assert abs(float(since[b, t, d]) - elapsed) < 1e-12
                assert float(value[b, t, d]) == last and int(step[b, t, d]) == position
