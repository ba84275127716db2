"""MkDocs hooks: links from docs/ to files outside of it, titles of generated pages, and a correction of the search.

On a forge `../../src/x.py` opens the file; the site holds docs/ only. With `extra.source_url` set such a link leads to
the repository, otherwise only its text remains. A link to a missing file is a warning, which fails `--strict`.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from tools.site.search import corrected, worker_of

_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>\.\./[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")
_NOTICE = re.compile(r"\A\s*<!--.*?-->\s*", re.DOTALL)  # MkDocs takes a title only from the first element of a page
_log = logging.getLogger("mkdocs.hooks.source_links")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    docs = Path(config["docs_dir"])
    here = posixpath.dirname(page.file.src_uri)

    def replace(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(here, link["target"]))
        if not path.startswith("../"):
            return link[0]  # inside docs/: MkDocs checks it
        path = path.removeprefix("../")
        if not (docs.parent / path).exists():
            _log.warning("%s links to %s, which does not exist", page.file.src_uri, path)
        source_url = str(config["extra"].get("source_url") or "").rstrip("/")
        return f"[{link['text']}]({source_url}/{path}{link['anchor'] or ''})" if source_url else link["text"]

    return _LINK.sub(replace, _NOTICE.sub("", markdown))


def on_post_build(*, config: Any) -> None:
    worker = worker_of(Path(config["site_dir"]))
    worker.write_text(corrected(worker.read_text("utf-8")), "utf-8")
