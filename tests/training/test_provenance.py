import subprocess

import cru
from cru.training.provenance import find_commit, find_versions


def test_versions():
    assert {"python", "torch", "numpy", "accelerate", "safetensors"} <= find_versions().keys()


def test_the_commit_is_that_of_the_source_and_says_whether_the_source_changed(tmp_path, monkeypatch):
    source = tmp_path / "src" / "cru" / "__init__.py"
    source.parent.mkdir(parents=True)
    source.write_text("")
    monkeypatch.setattr(cru, "__file__", str(source))
    assert find_commit() is None  # an installed package

    def git(*words: str) -> str:
        person = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", "-C", tmp_path, *person, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init")
    git("add", ".")
    git("commit", "--message", "first", "--no-verify")
    commit = git("rev-parse", "HEAD")
    assert find_commit() == commit and len(commit) == 40
    (tmp_path / "README.md").write_text("outside the source")
    assert find_commit() == commit
    source.write_text("changed = True")
    assert find_commit() == f"{commit}+changes"
