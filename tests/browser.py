"""Headless Chromium for tests of the web page. Needs the package playwright and a Chromium: `make browser`."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome", "chromium-browser")


@contextlib.contextmanager
def launched() -> Iterator[Any]:
    """A browser; the test is skipped if there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: `make browser`")
    program = os.environ.get("STOKER_BROWSER") or next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("needs Chromium: `make browser`, or its path in STOKER_BROWSER")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser: Any, url: str, allowed: str = "", **options: Any) -> Iterator[Any]:
    """A new tab. Fails for anything that the browser reports as an error, unless it contains `allowed`."""
    context = browser.new_context(**options)
    page, problems = context.new_page(), []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.goto(url)
    yield page
    context.close()
    assert [each for each in problems if not allowed or allowed not in each] == []


def ask(page: Any, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.keyboard.press("Enter")


def answer_of(page: Any) -> Any:
    """The last answer, complete."""
    answer = page.locator("article.answer[aria-busy=false]").last
    answer.wait_for()
    return answer
