from cru.training.provenance import find_commit, find_versions


def test_versions_and_commit():
    assert {"python", "torch", "numpy", "accelerate", "safetensors"} <= find_versions().keys()
    found = find_commit()
    assert found is None or len(found.removesuffix("+changes")) == 40
