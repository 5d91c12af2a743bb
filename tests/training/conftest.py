"""Short texts, so that runs are fast, and an empty folder for each test."""

import pytest


@pytest.fixture(scope="session")
def speeches(speeches, tmp_path_factory):
    """The beginnings of 20 real speeches."""
    folder = tmp_path_factory.mktemp("beginnings")
    for file in speeches.iterdir():
        (folder / file.name).write_text(file.read_text()[:4000])
    return folder


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
