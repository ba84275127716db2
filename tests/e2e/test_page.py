"""The web page with the built-in model, as a user sees it who has just run `engine up`."""

from __future__ import annotations

import json

import pytest

from ..browser import answer_of, ask, launched, opened
from .deployment import ROOT, serving

pytestmark = pytest.mark.slow


def test_the_built_in_model_thinks_calls_a_tool_and_answers_in_a_browser() -> None:
    with (
        launched() as browser,
        serving(ROOT / "deployments/tiny.yaml", "--port", "0") as (_, url),
        opened(browser, url) as page,
    ):
        ask(page, "What does max_num_seqs do?")
        assert "max_num_seqs" in answer_of(page).locator(".markdown code").first.inner_text()
        page.get_by_role("button", name="New chat").click()
        page.get_by_role("button", name="Settings", exact=True).click()
        page.get_by_label("reasoning_effort").select_option("low")
        page.get_by_role("button", name="What is the weather in Rome?").click()
        page.get_by_role("textbox", name="Result of get_weather").wait_for()
        answer = page.locator("article.answer").first
        assert set(json.loads(answer.locator(".call pre").inner_text())) == {"city"}
        assert answer.locator(".thought").text_content()
        page.get_by_role("button", name="Send the result").click()
        page.locator("article.answer[aria-busy=false]").nth(1).wait_for()
        assert page.locator(".error").count() == 0
        assert page.locator(".figures", has_text="prompt").count() == 2
        page.get_by_role("link", name="Configuration").click()
        page.get_by_text("Tool calls: hermes").wait_for()
