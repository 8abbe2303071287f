import numpy as np
import pytest

from cru.data import extrapolation
from cru.data.datasets import physionet
from tests.data.raw_formats import RECORDS, tar_of


def test_slots_averages_and_known_dirt(physionet_dir):
    patients = physionet.prepare(data_dir=physionet_dir)
    assert patients.ids == tuple(RECORDS) and len(patients.names) == 37
    assert not set(physionet.DESCRIPTORS) & set(patients.names)
    first = patients.take([0])
    heart = patients.names.index("HR")
    assert first.times.tolist() == [0, 0.1, 1.0, 30.0]
    assert first.values[:, heart].tolist() == [0, 73, 81, 90], "80 at 01:02 and 82 at 01:03 share a slot (half to even)"
    weight = patients.names.index("Weight")
    assert not first.mask[0].any(), "a weight of -1 is missing, its slot stays"
    assert patients.take([1]).values[0, weight] == np.float32(80.5)
    last = patients.take([4])
    assert last.values[0, weight] == 70, "-1 does not enter the average of its slot"
    acid = patients.names.index("pH")
    assert patients.take([3]).values[:, acid].tolist() == [0, np.float32((735 + 7.4) / 2)]


def test_a_patient_with_nothing_measured_stays(physionet_dir):
    patients = physionet.prepare(data_dir=physionet_dir)
    nothing = patients.take([2])
    assert nothing.lengths.tolist() == [1] and not nothing.mask.any()
    parts = physionet.load(data_dir=physionet_dir)
    assert sorted(i for part in parts for i in part.ids) == sorted(RECORDS)
    batch = extrapolation(patients, time=24.0).batch([2, 0])
    assert not batch.observed[0].any() and not batch.target_mask[0].any() and np.isfinite(batch.values.numpy()).all()


def test_outcomes_belong_to_their_patients(physionet_dir):
    outcomes = physionet.prepare(data_dir=physionet_dir).per_series
    assert set(outcomes) == set(physionet.OUTCOMES)
    assert outcomes["In-hospital_death"].tolist()[:2] == [0, 1] and outcomes["In-hospital_death"][3] == 1
    assert np.isnan(outcomes["Survival"][0]) and outcomes["Survival"][1] == 12
    assert np.isnan(outcomes["SAPS-I"][2]), "no entry"


def test_scaling_per_set_and_as_published(physionet_dir):
    for part in physionet.load(data_dir=physionet_dir):
        assert not part.mask.any() or (part.values[part.mask].min() >= 0 and part.values[part.mask].max() <= 1)
    published = physionet.prepare(data_dir=physionet_dir, published=True)
    weight = published.names.index("Weight")
    assert published.values[0, weight] == -1 and published.take([4]).values[0, weight] == 34.5
    parts = physionet.load(data_dir=physionet_dir, published=True)
    assert all(max(part.scaler.shift) <= 0 for part in parts)
    raw = physionet.load(data_dir=physionet_dir, scaling=None)
    assert raw.train.scaler is None


def write(folder, files):
    path = folder / "set-x.tar.gz"
    path.write_bytes(tar_of(files))
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello world\n", "must be a record that begins with 'Time,Parameter,Value', got b'hello world'"),
        ("Time,Parameter,Value\n00:00,HR,73\n00:61,HR,73\n", "'00:61,HR,73' is not such a line"),
        ("Time,Parameter,Value\n00:00,HR,abc\n", "must hold lines like '00:07,HR,73'"),
        ("Time,Parameter,Value\n00:00,HR\n", "must hold lines like"),
        ("Time,Parameter,Value\n00:00,HR,1,2\n", "must hold lines like"),
        ("Time,Parameter,Value\n00:00,Pulse,73\n", "there is no variable 'Pulse'"),
        ("Time,Parameter,Value\n00:00,HR,inf\n", "must hold lines like"),
        ("Time,Parameter,Value\n00:00,HR,1\n\n\n00:01,HR,2\n", "must hold lines like"),
    ],
)
def test_a_text_file_that_is_no_record_is_named(tmp_path, text, message):
    good = "Time,Parameter,Value\n" + RECORDS["132539"]
    path = write(tmp_path, {"set-x/1.txt": good, "set-x/2.txt": text})
    with pytest.raises(ValueError, match=r"set-x/2.txt in .*set-x.tar.gz") as caught:
        physionet.parse([path], [])
    assert message in str(caught.value)


def test_an_archive_without_records_and_empty_records(tmp_path):
    with pytest.raises(ValueError, match=r"must hold records named like set-a/132539.txt"):
        physionet.parse([write(tmp_path, {"readme.md": "?"})], [])
    empty = write(
        tmp_path, {"set-x/1.txt": "Time,Parameter,Value\n", "set-x/2.txt": "Time,Parameter,Value\n00:00,HR,7\n"}
    )
    assert physionet.parse([empty], []).lengths.tolist() == [0, 1]


def test_tampered_truncated_and_missing_archives(physionet_dir, tmp_path):
    archive = physionet_dir / "physionet2012" / "set-a.tar.gz"
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-10])
    with pytest.raises(ValueError, match=r"set-a.tar.gz must be the official file, but its sha256 is"):
        physionet.prepare(data_dir=physionet_dir)
    with pytest.raises(ValueError, match=r"truncated or damaged"):
        physionet.parse([archive], [])
    archive.unlink()
    with pytest.raises(FileNotFoundError, match=r"must hold set-a.tar.gz, set-b.tar.gz, Outcomes-a.txt"):
        physionet.prepare(data_dir=physionet_dir)
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").iterdir())


def test_a_broken_table_of_outcomes_is_named(tmp_path):
    archive = write(tmp_path, {"set-x/1.txt": "Time,Parameter,Value\n00:00,HR,7\n"})
    (tmp_path / "Outcomes-x.txt").write_text("RecordID,SOFA\n1,2\n")
    with pytest.raises(
        ValueError, match=r"Outcomes-x.txt must be a table of outcomes with the columns RecordID, SAPS-I"
    ):
        physionet.parse([archive], [tmp_path / "Outcomes-x.txt"])


@pytest.mark.data
def test_real_patients(real_data, shared_cache):
    patients = physionet.prepare(data_dir=real_data, cache=shared_cache)
    assert len(patients) == 8000 and len(patients.names) == 37
    assert len(patients.times) / 8000 == pytest.approx(72.15, abs=0.005)
    assert patients.mask.mean() == pytest.approx(0.162, abs=0.0005)
    measured = np.unique(patients.series_index[patients.mask.any(1)])
    nothing = sorted(set(range(8000)) - set(measured.tolist()))
    at_most_a_weight = [
        "140501",
        "140936",
        "141264",
        "142731",
        "142998",
        "143656",
        "145611",
        "147514",
        "150309",
        "150649",
    ]
    assert len(nothing) == 9 and {patients.ids[i] for i in nothing} < set(at_most_a_weight)
    assert not (patients.values[:, patients.names.index("Weight")] == -1).any()
    assert patients.values[:, patients.names.index("pH")].max() == 735
    deaths = patients.per_series["In-hospital_death"]
    assert deaths[:4000].sum() == 554 and deaths[4000:].sum() == 568
    parts = physionet.load(data_dir=real_data, cache=shared_cache)
    assert [len(part) for part in parts] == [4800, 1600, 1600]


@pytest.mark.data
@pytest.mark.parametrize(
    ("published", "reached", "tolerance"),
    [(True, [0.53e-2, 0.50e-2], 0.08), (False, [0.665e-2, 0.602e-2], 0.01)],  # docs/reference/data.md
)
def test_real_trivial_predictors(real_data, shared_cache, published, reached, tolerance):
    """The patient's own mean and last value so far, with the published minima and without, averaged over four splits.

    The mean of the training set is not asserted: each set has its own range, and one outlier moves that score from
    1.1e-2 to 2.1e-2.
    """
    scores = []
    for seed in range(4):
        parts = physionet.load(data_dir=real_data, cache=shared_cache, seed=seed, published=published)
        train, test = parts.train, extrapolation(parts.test, time=24.0)
        mean = train.values.sum(0, dtype=float) / np.maximum(train.mask.sum(0), 1)
        seen = np.add.reduceat(test.mask, test.offsets[:-1], dtype=int)
        own = np.add.reduceat(test.values, test.offsets[:-1], dtype=float) / np.maximum(seen, 1)
        own = np.where(seen > 0, own, mean)
        last = np.tile(mean, (len(test), 1))
        row, column = np.nonzero(test.mask)
        last[test.series_index[row], column] = test.values[row, column]
        guesses = (own[test.series_index], last[test.series_index])
        scores.append([((test.targets - guess) ** 2)[test.hidden].mean() for guess in guesses])
    assert np.mean(scores, 0) == pytest.approx(reached, rel=tolerance)
