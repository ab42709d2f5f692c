"""A model put into a directory before a verifier starts: all of it or nothing."""

from __future__ import annotations

import pytest

from dartspec.services.common.errors import FailedPrecondition, NotFound
from dartspec.services.verifier.fetch import fetch


def model(path):
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"weights")
    return path


def test_a_directory_is_copied_once(tmp_path):
    source, target = model(tmp_path / "source"), tmp_path / "volume" / "target"
    assert fetch(str(source), target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {
        "config.json": b"{}",
        "model.safetensors": b"weights",
    }
    assert target.stat().st_mode & 0o777 == 0o755
    (target / "model.safetensors").write_bytes(b"kept")
    assert not fetch(str(source), target)
    assert (target / "model.safetensors").read_bytes() == b"kept"


def test_nothing_is_left_of_a_failure(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match=r"no config\.json"):
        fetch(str(tmp_path / "empty"), tmp_path / "volume" / "target")
    assert list((tmp_path / "volume").iterdir()) == []


def test_a_directory_with_other_things_is_refused(tmp_path):
    source, target = model(tmp_path / "source"), tmp_path / "target"
    target.mkdir()
    (target / "precious").write_text("mine")
    with pytest.raises(FailedPrecondition, match="empty it, or choose another"):
        fetch(str(source), target)
    assert [path.name for path in target.iterdir()] == ["precious"]


def test_a_hub_id_goes_straight_into_place(tmp_path, monkeypatch):
    def download(source, revision, directory):
        assert (source, revision) == ("owner/name", "v1")
        (directory / "config.json").write_text("{}")

    monkeypatch.setattr("dartspec.services.verifier.fetch.download", download)
    assert fetch("owner/name", tmp_path / "target", "v1")
    assert (tmp_path / "target" / "config.json").is_file()
