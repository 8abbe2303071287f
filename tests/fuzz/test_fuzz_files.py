"""A short slice of the fuzz of files, always the same."""

import pytest

from tests.fuzz.files import Target, check_case, made_targets

CASES, SLICES = 600, 3


@pytest.fixture(scope="module")
def targets():
    with made_targets() as found:
        yield found


def test_the_real_files_are_taken(targets):
    """Else no mutation could be told from what was refused anyway."""
    for target in targets:
        target.put(target.content)
        target.use()


@pytest.mark.parametrize("part", range(SLICES))
def test_mutated_files_are_used_or_refused_with_one_sentence(targets, part):
    cases = range(part * CASES // SLICES, (part + 1) * CASES // SLICES)
    assert [found for number in cases if (found := check_case(targets, 0, number))] == []


def test_a_traceback_is_a_failure():
    def use() -> None:
        raise KeyError("x")

    target = Target("x", b"1", lambda content: None, use, lambda rng: b"2")
    assert "KeyError" in str(check_case([target], 0, 0))
