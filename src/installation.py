"""How this package was installed, and the commands that add one of its extras, or one of the packages beside it."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from urllib.parse import unquote, urlsplit

from .version import __version__

NAME = "stoker"
PACKAGES = ("stoker-launcher", "stoker-lmcache")  # in the folder packages of the source tree


def install_command(*extras: str) -> str:
    """The pip command that adds extras to this installation: if it came from a source tree, from there."""
    wanted = f"{_source()}[{','.join(extras)}]"
    return f"pip install {shlex.quote(wanted)}"


def package_command(name: str) -> str:
    """The pip command that installs one of PACKAGES, also from the source tree."""
    source = _source()
    is_no_tree = source == NAME or source.endswith((".whl", ".tar.gz"))
    return f"pip install {shlex.quote(f'{name}=={__version__}' if is_no_tree else f'{source}/packages/{name}')}"


def absent_packages() -> tuple[str, ...]:
    """Names in PACKAGES that are not installed in the version of this one, whose modules they use."""
    return tuple(name for name in PACKAGES if not _is_installed(name))


def _is_installed(name: str) -> bool:
    if find_spec(name.replace("-", "_")) is None:
        return False
    try:
        return version(name) == __version__
    except PackageNotFoundError:  # imported from a source tree that is not installed
        return True


def _source() -> str:
    """A folder, a file, or the name in an index. pip records where a package that is not from an index came from."""
    try:
        record = distribution(NAME).read_text("direct_url.json")
    except PackageNotFoundError:  # imported from a source tree that is not installed
        return NAME
    url = urlsplit(json.loads(record)["url"]) if record else None
    return unquote(url.path) if url is not None and url.scheme == "file" else NAME
