"""The command that adds an extra."""

from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest

from stoker import __version__, installation


@pytest.mark.parametrize(
    ("record", "command"),
    [
        (None, "pip install 'stoker[engine]'"),  # from an index
        ('{"url": "file:///src/my%20stoker", "dir_info": {}}', "pip install '/src/my stoker[engine]'"),
        ('{"url": "https://host/stoker.whl", "archive_info": {}}', "pip install 'stoker[engine]'"),
    ],
)
def test_the_command_names_the_source_tree_that_was_installed(record, command, monkeypatch):
    """`pip install 'stoker[engine]'` installs from an index, where another project may have this name."""
    monkeypatch.setattr(installation, "distribution", lambda name: SimpleNamespace(read_text=lambda file: record))
    assert installation.install_command("engine") == command


@pytest.mark.parametrize(
    ("record", "command"),
    [
        (None, f"pip install stoker-lmcache=={__version__}"),
        (
            '{"url": "file:///dist/stoker-1-py3-none-any.whl", "archive_info": {}}',
            f"pip install stoker-lmcache=={__version__}",
        ),
        ('{"url": "file:///src/my%20stoker", "dir_info": {}}', "pip install '/src/my stoker/packages/stoker-lmcache'"),
    ],
)
def test_a_package_beside_this_one_comes_from_the_same_place(record, command, monkeypatch):
    monkeypatch.setattr(installation, "distribution", lambda name: SimpleNamespace(read_text=lambda file: record))
    assert installation.package_command("stoker-lmcache") == command


def test_a_package_that_cannot_be_found_is_absent(monkeypatch):
    monkeypatch.setattr(installation, "find_spec", {"stoker_lmcache": None}.__getitem__)
    monkeypatch.setattr(installation, "PACKAGES", ("stoker-lmcache",))
    assert installation.absent_packages() == ("stoker-lmcache",)


def test_a_package_of_another_version_is_absent(monkeypatch):
    """It uses modules of this one, and would fail within a start."""
    monkeypatch.setattr(installation, "find_spec", lambda name: object())
    versions = {"stoker-launcher": __version__, "stoker-lmcache": "0.0.1"}
    monkeypatch.setattr(installation, "version", versions.__getitem__)
    assert installation.absent_packages() == ("stoker-lmcache",)


def test_a_tree_that_is_not_installed_has_only_the_name(monkeypatch):
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(installation, "distribution", missing)
    assert installation.install_command("engine", "ray") == "pip install 'stoker[engine,ray]'"
