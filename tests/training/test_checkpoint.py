import json
import pickle

import pytest
import torch
from safetensors.torch import save_file

from cru.files import write_atomically
from cru.training.checkpoint import (
    pack_optimizer,
    read_checkpoint,
    unpack_optimizer,
    write_checkpoint,
)

TENSORS = {"model.a": torch.arange(6.0).reshape(2, 3), "model.b": torch.tensor(3), "model.c": torch.zeros(0)}
TENSORS["model.d"] = torch.tensor(2.0).expand(1)  # one entry, with a stride of 0


@pytest.fixture
def path(tmp_path):
    write_checkpoint(tmp_path / "x.safetensors", TENSORS, {"progress": {"epoch": 3}})
    return tmp_path / "x.safetensors"


def test_round_trip(path):
    tensors, header = read_checkpoint(path)
    assert header == {"progress": {"epoch": 3}}
    assert tensors.keys() == TENSORS.keys() and all(torch.equal(tensors[k], TENSORS[k]) for k in TENSORS)


@pytest.mark.parametrize("keep", [0, 5, 100, 200, -1])
def test_a_truncated_file_gives_one_sentence(path, keep):
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"x\.safetensors is truncated or not a checkpoint of this library"):
        read_checkpoint(path)


def test_a_foreign_file_gives_one_sentence(path):
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="is not a checkpoint of this library"):
        read_checkpoint(path)
    path.write_text(json.dumps({"a": 1}))
    with pytest.raises(ValueError, match="truncated or not a checkpoint"):
        read_checkpoint(path)
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        read_checkpoint(path.with_name("y"))


@pytest.mark.parametrize("where", ["tensors", "header"])
def test_a_flipped_bit_is_found(path, where):
    content = bytearray(path.read_bytes())
    content[-3 if where == "tensors" else content.index(b"epoch") + 9] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged"):
        read_checkpoint(path)


class Malicious:
    def __reduce__(self):
        return (open, ("fired", "w"))


@pytest.mark.parametrize(
    "writer", [lambda p: p.write_bytes(pickle.dumps(Malicious())), lambda p: torch.save(Malicious(), p)]
)
def test_a_planted_pickle_is_refused_and_does_not_run(path, tmp_path, monkeypatch, writer):
    monkeypatch.chdir(tmp_path)
    writer(path)
    with pytest.raises(ValueError, match="truncated or not a checkpoint"):
        read_checkpoint(path)
    assert not (tmp_path / "fired").exists()


def test_a_write_that_breaks_off_leaves_the_old_file(path, monkeypatch):
    before = path.read_bytes()
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"half")
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_the_optimizer_continues_exactly(kind, tmp_path):
    def steps(parameter, optimizer, targets):
        for target in targets:
            optimizer.zero_grad()
            ((parameter - target) ** 2).sum().backward()
            optimizer.step()

    one, other = (torch.nn.Parameter(torch.zeros(3)) for _ in range(2))
    first = kind([one], lr=0.1, weight_decay=0.01)
    steps(one, first, [1.0, 2.0, 3.0, 4.0])
    half = kind([other], lr=0.1, weight_decay=0.01)
    steps(other, half, [1.0, 2.0])
    write_checkpoint(tmp_path / "o", pack_optimizer(half), {})
    fresh = kind([other], lr=0.1, weight_decay=0.01)
    unpack_optimizer(fresh, read_checkpoint(tmp_path / "o")[0])
    steps(other, fresh, [3.0, 4.0])
    assert torch.equal(one, other)
