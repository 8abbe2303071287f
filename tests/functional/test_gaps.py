import pytest
import torch

from cru.functional import clip_gaps, gaps


def test_gaps_are_taken_before_any_cast() -> None:
    seconds = torch.tensor([[1.7e9, 1.7e9 + 0.001, 1.7e9 + 0.003]], dtype=torch.float64)
    torch.testing.assert_close(
        gaps(seconds, None, 1.0, torch.float32), torch.tensor([[0.0, 1e-3, 2e-3]]), rtol=1e-3, atol=0
    )
    nanoseconds = torch.tensor([[1_700_000_000_000_000_000, 1_700_000_000_000_000_007]])
    assert gaps(nanoseconds, None, 1.0, torch.float32).tolist() == [[0.0, 7.0]]


def test_the_first_gap_starts_at_the_state() -> None:
    assert gaps(torch.tensor([[5.0, 6.0]]), torch.tensor([3.0]), 0.5, torch.float64).tolist() == [[1.0, 0.5]]


def test_decreasing_times_are_named() -> None:
    times = torch.arange(8.0).repeat(4, 1)
    times[3, 7] = 2.5
    with pytest.raises(ValueError, match=r"`times` must not decrease: series 3 goes from 6.0 to 2.5 at step 7"):
        gaps(times, None, 1.0, torch.float32)
    with pytest.raises(ValueError, match=r"series 0 goes from 9.0 to 0.0 at step 0"):
        gaps(times[:1], torch.tensor([9.0]), 1.0, torch.float32)


def test_infinite_times_are_named() -> None:
    with pytest.raises(ValueError, match=r"`times` must be finite: series 0 has inf at step 1"):
        gaps(torch.tensor([[0.0, float("inf")]]), None, 1.0, torch.float32)


def test_gaps_are_clipped_with_and_without_queries_in_between():
    """By hand, row for row: the time since the last observation, no more than 10, and the gaps that this makes."""
    generator = torch.Generator().manual_seed(0)
    times = torch.rand(6, 30, generator=generator, dtype=torch.float64).mul(8).cumsum(1) + 1e6
    observed = torch.rand(6, 30, generator=generator) < 0.3
    for start in (None, times[:, 0] - 7):
        found = clip_gaps(times, observed, 10.0, start)
        for series in range(6):
            last = now = float(times[series, 0] if start is None else start[series])
            base = now
            for step in range(30):
                since = min(float(times[series, step]) - last, 10.0)
                now = base + since
                assert float(found[series, step]) == pytest.approx(now, abs=1e-6)
                if observed[series, step]:
                    base, last = now, float(times[series, step])
    assert clip_gaps(times, observed, None) is times and clip_gaps(times, observed, 1e9) is times
    some = torch.ones(6, 30, dtype=torch.bool)
    some[:, 5:20] = False
    fewer = torch.cat([times[:, :5], times[:, 20:]], 1)
    dense, sparse = clip_gaps(times, some, 10.0), clip_gaps(fewer, torch.ones(6, 15, dtype=torch.bool), 10.0)
    torch.testing.assert_close(dense[:, 20:], sparse[:, 5:])  # questions between change nothing
