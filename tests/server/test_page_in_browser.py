"""The built-in web page in headless Chromium. The server's engine is a fake, or its answers are written here.

Needs the package playwright and a Chromium (`make browser`); skipped without them.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.model.pooling import PoolHead, Pooling
from stoker.text.tokenizer import Tokenizer

from ..browser import answer_of, ask, launched, opened
from ..fakes import FakeEngine
from .deployment import on_a_socket

pytestmark = pytest.mark.slow
SAID = "The answer is 42."
CHAT = "**/v1/chat/completions"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as browser:
        yield browser


class ServerThread:
    """A server on a port, in its own event loop. is_held: generation waits."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.is_held = False
        token_ids = Tokenizer.load(folder).encode(SAID)
        self.engine = FakeEngine(script=lambda _: token_ids, pace=self._pace)
        self._folder, self._options = folder, options
        self._started, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _pace(self) -> None:
        await asyncio.sleep(0)
        while self.is_held and not self._end.is_set():
            await asyncio.sleep(0.01)

    async def _serve(self) -> None:
        async with on_a_socket(self._folder, self.engine, **self._options) as (port, _):
            self.url = f"http://127.0.0.1:{port}"
            self._started.set()
            while not self._end.is_set():
                await asyncio.sleep(0.02)

    def __enter__(self) -> ServerThread:
        self._thread.start()
        assert self._started.wait(60)
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join(60)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerThread]:
    with ServerThread(folder) as server:
        yield server


@pytest.fixture
def page(browser: Any, server: ServerThread) -> Iterator[Any]:
    """A new tab with the chat. The test fails for anything that the browser reports as an error."""
    with opened(browser, server.url) as page:
        yield page


def with_tools(page: Any) -> None:
    """The model of the server calls tools."""
    models = {"data": [{"id": "tiny", "capabilities": {"tools": True}}]}
    page.route("**/v1/models", lambda route: route.fulfill(json=models))
    page.reload()


def stream(*deltas: dict[str, Any], finish: str = "stop", end: str = "data: [DONE]\n\n") -> str:
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    counts = {"prompt_tokens": 20, "completion_tokens": 7, "total_tokens": 27}
    chunks.append({"choices": [], "usage": counts})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + end


class Answers:
    """Answers chats with the given streams, one after the other, and keeps the requests."""

    def __init__(self, page: Any, *bodies: str, status: int = 200) -> None:
        self.requests: list[dict[str, Any]] = []
        self._bodies = list(bodies)
        self._status = status
        page.route(CHAT, self._answer)

    def _answer(self, route: Any) -> None:
        self.requests.append(route.request.post_data_json)
        kind = "text/event-stream" if self._status == 200 else "application/json"
        route.fulfill(status=self._status, headers={"content-type": kind}, body=self._bodies.pop(0))


def test_a_question_is_asked_and_answered_by_keyboard_alone(page: Any, server: ServerThread):
    page.get_by_role("textbox", name="Message").wait_for()
    page.keyboard.type("What is the question?")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("And the answer?")
    page.keyboard.press("Enter")
    answer = answer_of(page)
    assert answer.locator(".markdown").inner_text() == SAID
    assert "tokens" in answer.locator(".figures").inner_text()
    assert page.locator("article.user .bubble").inner_text() == "What is the question?\nAnd the answer?"
    assert page.locator("#announcer").inner_text() == f"Answer complete. {SAID}"
    answer.get_by_role("button", name="Another answer").press("Enter")
    answer_of(page)
    assert page.locator("article.answer").count() == 1
    page.reload()
    assert answer_of(page).locator(".markdown").inner_text() == SAID
    page.get_by_role("button", name="New chat").press("Enter")
    assert page.locator("article").count() == 0


def test_an_answer_can_be_stopped_and_its_request_is_aborted(page: Any, server: ServerThread):
    server.is_held = True
    try:
        ask(page, "Hello")
        page.get_by_role("button", name="Stop").wait_for()
        while not server.engine.open_requests:
            page.wait_for_timeout(10)
        (request,) = server.engine.open_requests
        page.keyboard.press("Escape")
        assert "stopped" in answer_of(page).inner_text()
        while request.request_id not in server.engine.aborted:
            page.wait_for_timeout(10)
    finally:
        server.is_held = False
    page.get_by_role("button", name="Send").wait_for()


def test_reasoning_is_folded_and_a_call_is_answered_by_hand(page: Any):
    call = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "get_weather", "arguments": ""}}
    pieces = [{"tool_calls": [{"index": 0, "function": {"arguments": text}}]} for text in ('{"city": "Pa', 'ris"}')]
    thoughts = [{"reasoning": text, "reasoning_content": text} for text in ("Which tool? ", "The weather one.")]
    sent = Answers(
        page,
        stream({"role": "assistant", "content": ""}, *thoughts, {"tool_calls": [call]}, *pieces, finish="tool_calls"),
        stream({"content": "18 degrees."}),
    )
    with_tools(page)
    page.get_by_role("button", name="What is the weather in Rome?").click()
    page.get_by_role("textbox", name="Result of get_weather").wait_for()
    answer = page.locator("article.answer").first
    assert not answer.locator(".thought").is_visible()
    answer.locator(".reasoning summary").press("Enter")
    assert answer.locator(".thought").inner_text() == "Which tool? The weather one."
    assert json.loads(answer.locator(".call pre").inner_text()) == {"city": "Paris"}
    page.get_by_role("textbox", name="Result of get_weather").fill('{"temperature_c": 18}')
    page.get_by_role("button", name="Send the result").press("Enter")
    page.get_by_text("18 degrees.", exact=True).wait_for()
    first, second = sent.requests
    assert first["tools"][0]["function"]["name"] == "get_weather"
    asked, called, result = second["messages"]
    assert asked == {"role": "user", "content": "What is the weather in Rome?"}
    assert called["reasoning"] == "Which tool? The weather one."
    (sent_call,) = called["tool_calls"]
    function = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    assert sent_call == {"id": "call-1", "type": "function", "function": function}
    assert result == {"role": "tool", "tool_call_id": "call-1", "content": '{"temperature_c": 18}'}


def test_two_calls_are_answered_before_the_model_goes_on(page: Any):
    calls = [
        {"index": index, "id": f"call-{index}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for index, name in enumerate(("one", "two"))
    ]
    sent = Answers(page, stream({"tool_calls": calls}, finish="tool_calls"), stream({"content": "Done."}))
    ask(page, "Go")
    for name in ("one", "two"):
        page.get_by_role("textbox", name=f"Result of {name}").fill(name)
        page.get_by_role("button", name="Send the result").first.click()
    page.get_by_text("Done.", exact=True).wait_for()
    assert [(each["tool_call_id"], each["content"]) for each in sent.requests[1]["messages"][2:]] == [
        ("call-0", "one"),
        ("call-1", "two"),
    ]


def test_the_settings_are_fields_of_the_request(page: Any):
    sent = Answers(page, stream({"content": "Yes."}))
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("temperature").fill("0.5")
    page.get_by_label("seed").fill("7")
    page.get_by_label("reasoning_effort").select_option("low")
    page.get_by_text("Other fields").click()
    page.get_by_label("Fields of the request").fill('{"stop": ["x"]')
    assert page.locator(".settings .error-text").last.inner_text().startswith("Other fields: ")
    page.get_by_label("Fields of the request").fill('{"stop": ["x"]}')
    page.keyboard.press("Escape")
    ask(page, "Really?")
    answer_of(page)
    (body,) = sent.requests
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    found = {name: body[name] for name in ("temperature", "seed", "reasoning_effort", "stop", "model")}
    assert found == {"temperature": 0.5, "seed": 7, "reasoning_effort": "low", "stop": ["x"], "model": "org/tiny"}
    assert "top_p" not in body


REFUSED = {"message": "too <b>hot", "type": "invalid_request_error", "param": "temperature", "code": "too_large"}
DIED = {"message": "the engine died", "type": "server_error", "param": None, "code": "engine_dead"}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, json.dumps({"error": REFUSED})),
        (502, "<html>Bad Gateway</html>"),
        (200, f"data: {json.dumps({'error': DIED})}\n\n"),
        (200, stream({"content": "half"}, end="")),
    ],
)
def test_an_error_is_shown_as_it_is(browser: Any, server: ServerThread, status: int, body: str):
    with opened(browser, server.url, allowed="Failed to load resource") as page:
        Answers(page, body, status=status)
        ask(page, "Hello")
        text = answer_of(page).locator(".error").inner_text()
        if status == 400:
            assert "too <b>hot" in text
            assert all(each in text for each in ("HTTP 400", "param: temperature", "code: too_large"))
        elif status == 502:
            assert "<html>Bad Gateway</html>" in text
        else:
            assert "the engine died" in text or "before the answer was complete" in text


INJECTIONS = [
    "<script>window.hit = 1</script>",
    "<img src=x onerror='window.hit = 1'>",
    "**<img src=x onerror='window.hit = 1'>**",
    "```html\n<script>window.hit = 1</script>\n```",
    "[click](javascript:window.hit=1)",
    "[click]( javascript:window.hit=1 )",
    "[click](JaVaScRiPt:window.hit=1)",
    "[click](java\tscript:window.hit=1)",
    "[click](data:text/html,<script>window.hit=1</script>)",
    '[click](https://x.example/"onmouseover="window.hit=1)',
    "![image](https://x.example/leak?secret)",
    "![image](javascript:window.hit=1)",
    "<a href='javascript:window.hit=1'>click</a>",
    "| <svg onload='window.hit=1'> | b |\n|---|---|\n| <iframe src=javascript:window.hit=1> | c |",
    "# <style>body{display:none}</style>",
    "> - 1. `<b onclick=window.hit=1>`",
    "</p></div><script>window.hit=1</script>",
    "&lt;script&gt;window.hit=1&lt;/script&gt;",
]


@pytest.mark.parametrize("place", ["content", "reasoning", "name", "arguments"])
def test_nothing_that_a_model_writes_becomes_an_element(page: Any, place: str):
    deltas: list[dict[str, Any]] = []
    for text in INJECTIONS:
        if place in ("content", "reasoning"):
            deltas.append({place: f"{text}\n\n"})
        else:
            function = {"name": "f", "arguments": "{}", place: text}
            deltas.append({"tool_calls": [{"index": len(deltas), "id": f"c{len(deltas)}", "function": function}]})
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    Answers(page, stream(*deltas))
    ask(page, "<script>window.hit = 1</script><img src=x onerror='window.hit = 1'>")
    answer = answer_of(page)
    for link in answer.locator("a").all():
        assert link.get_attribute("href").startswith("https://x.example/")
        assert link.get_attribute("rel") == "noopener noreferrer nofollow"
        assert link.get_attribute("onmouseover") is None
    found = page.locator(".log").evaluate(
        """log => [...log.querySelectorAll("*")].flatMap((element) => [
             element.localName, ...[...element.attributes].map((each) => each.name)
           ]).filter((name) => /^(script|img|iframe|style|object|embed|on.*)$/.test(name))"""
    )
    assert found == []
    assert page.evaluate("window.hit") is None
    assert all("x.example" not in url for url in requested)


def test_the_browser_itself_refuses_html_from_strings(browser: Any, server: ServerThread):
    with opened(browser, server.url, allowed="requires 'TrustedHTML'") as page:
        refused = page.evaluate(
            "() => { try { document.body.innerHTML = '<b>x</b>'; return false; } catch { return true; } }"
        )
        assert refused


MARKDOWN = [
    ("**bold** and *italic* and `co*de`", "<p><strong>bold</strong> and <em>italic</em> and <code>co*de</code></p>"),
    ("snake_case_name stays, 2 * 3 * 4 too", "<p>snake_case_name stays, 2 * 3 * 4 too</p>"),
    ("a\nb", "<p>a<br>b</p>"),
    ("- one\n- two\n  1. deep\n- three", "<ul><li>one</li><li>two<ol><li>deep</li></ol></li><li>three</li></ul>"),
    ("3. c\n4. d", '<ol start="3"><li>c</li><li>d</li></ol>'),
    ("## Title\ntext", "<h4>Title</h4><p>text</p>"),
    ("> said\n> so", "<blockquote><p>said<br>so</p></blockquote>"),
    ("---", "<hr>"),
    ("**not closed", "<p>**not closed</p>"),
    ("\\*plain\\*", "<p>*plain*</p>"),
    (
        "|a|b|\n|-|-|\n|1|`x`|",
        '<div class="wide" tabindex="0"><table><thead><tr><th>a</th><th>b</th></tr></thead>'
        "<tbody><tr><td>1</td><td><code>x</code></td></tr></tbody></table></div>",
    ),
]


def test_markdown_whole_and_in_pieces(page: Any):
    """Every beginning of a text is shown without an error, and the end is the same as that of the whole."""
    script = """async (texts) => {
      const { MarkdownView } = await import("./page/markdown.js");
      return texts.map((text) => {
        const [whole, grown] = [new MarkdownView(), new MarkdownView()];
        whole.show(text);
        for (let end = 0; end <= text.length; end += 1) grown.show(text.slice(0, end));
        return [whole.element.innerHTML, grown.element.innerHTML];
      });
    }"""
    code = "```py\nx = '<b>'\n```\nafter"
    *shown, (of_code, grown_code) = page.evaluate(script, [*(text for text, _ in MARKDOWN), code])
    for (text, expected), (whole, grown) in zip(MARKDOWN, shown, strict=True):
        assert whole == grown == expected, text
    assert of_code == grown_code
    assert "<code>x = '&lt;b&gt;'</code>" in of_code


FORMULAS = [
    ("It is $E = mc^2$.", 1, []),
    (r"\(a_1\) and \[b\] and $$c$$", 3, []),
    ("$$\n- a\n+ b\n= c\n$$\n\ntext", 1, []),
    ("\\[\na\n\\]", 1, []),
    ("$5 and $6, $x$5, \\$a\\$, `$a$`, $ a $, $$", 0, []),
    ("$$\nnot closed", 0, []),
    ("$\\frac{$", 0, ["\\frac{"]),
    ("$\\href{javascript:alert(1)}{x}$", 0, ["\\href{javascript:alert(1)}{x}"]),
    ("$\\def\\a{\\a\\a}\\a$", 0, ["\\def\\a{\\a\\a}\\a"]),
    ("$\\includegraphics{https://x.example/leak}$", 0, ["\\includegraphics{https://x.example/leak}"]),
]


def test_formulas_are_mathml_and_what_is_none_is_text(page: Any):
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    script = """async (text) => {
      const { MarkdownView } = await import("./page/markdown.js");
      const view = new MarkdownView();
      document.body.append(view.element);
      view.show(text);
      await import("./page/temml.js");
      await new Promise((resolve) => setTimeout(resolve)); // formulas are shown when the library has arrived
      const sources = [...view.element.querySelectorAll(".formula code")].map((each) => each.textContent);
      return [view.element.querySelectorAll("math").length, sources];
    }"""
    for text, num_shown, sources in FORMULAS:
        assert page.evaluate(script, text) == [num_shown, sources], text
    assert page.locator("math a, math [href], math img").count() == 0
    assert all(url.startswith(page.url.split("#")[0]) for url in asked)


def test_code_has_colours_when_its_block_is_complete(page: Any):
    script = """async (text) => {
      const { MarkdownView } = await import("./page/markdown.js");
      const view = new MarkdownView();
      document.body.append(view.element);
      view.show(text);
      await import("./page/highlight.js");
      await new Promise((resolve) => setTimeout(resolve)); // colours come when the library has arrived
      const parts = [...view.element.querySelectorAll("code span")].map((each) => [each.className, each.textContent]);
      return [view.element.querySelector("code").textContent, parts];
    }"""
    html = '<b onclick="x()">\n<script>window.hit = 1</script>'
    for language, code, expected in (
        ("python", "return 'a' # b", [["code-keyword", "return"], ["code-string", "'a'"], ["code-comment", "# b"]]),
        ("JSON", "[1]", [["code-punctuation", "["], ["code-number", "1"], ["code-punctuation", "]"]]),
        ("nothing-known", "return 1", []),
        ("", "return 1", []),
        ("python", "return " + "1" * 1000, []),
        ("python", "return 1\n" * 2000, []),
    ):
        assert page.evaluate(script, f"```{language}\n{code}\n```") == [code, expected], (language, code[:20])
    assert page.evaluate(script, "```python\nreturn 1") == ["return 1", []]  # it may still grow
    text, parts = page.evaluate(script, f"```html\n{html}\n```")
    assert text == html
    assert ["code-string", '"x()"'] in parts
    assert page.locator(".markdown b, .markdown script, .markdown [onclick]").count() == 0


def test_markdown_takes_linear_time_for_any_text(page: Any):
    """Each took minutes with patterns that go back; the limit is a hundred times what they take."""
    hostile = {
        "dollars": "$" * 100_000,
        "formulas": "$a " * 50_000,
        "openings": "\\[\n" * 30_000,
        "stars": "*" * 100_000,
        "rule": "* " * 50_000 + "x",
        "brackets": "[" * 100_000,
        "links": "[a](" * 30_000,
        "ticks": "".join("`" * (1 + index % 60) + "a" for index in range(5_000)),
        "quotes": ">" * 100_000,
        "spaces": " " * 100_000 + "|\n" + " " * 100_000 + "-",
        "fence": "```" + " " * 100_000 + "`",
        "lists": "\n".join(" " * (index % 500) + "- x" for index in range(5_000)),
        "bold": "**a _b " * 20_000,
    }
    script = """async (texts) => {
      const { MarkdownView } = await import("./page/markdown.js");
      const began = performance.now();
      for (const text of texts) new MarkdownView().show(text);
      return performance.now() - began;
    }"""
    assert page.evaluate(script, list(hostile.values())) < 30_000


def test_events_are_read_at_any_split(page: Any):
    script = """async (text) => {
      const { eventData } = await import("./page/server.js");
      const all = [];
      for (let at = 0; at <= text.length; at += 1) {
        const found = [];
        for await (const data of eventData([text.slice(0, at), text.slice(at)])) found.push(data);
        all.push(found.join("|"));
      }
      return [...new Set(all)];
    }"""
    text = ': keep-alive\n\ndata: {"a": "\\n"}\n\ndata: {"b": 2}\r\n\r\ndata: [DONE]\n\n'
    assert page.evaluate(script, text) == ['{"a": "\\n"}|{"b": 2}|[DONE]']


def test_a_key_is_asked_for_and_kept_in_this_tab_only(browser: Any, folder: Path):
    with (
        ServerThread(folder, api_key=["sk-canary-4711"]) as server,
        opened(browser, server.url, allowed="401") as page,
    ):
        page.get_by_label("Key", exact=True).fill("sk-wrong")
        page.keyboard.press("Enter")
        page.get_by_text("The server does not accept the key.").wait_for()
        state = page.locator("#key-button")
        assert state.inner_text() == "API key refused"
        page.get_by_label("Key", exact=True).fill("sk-canary-4711")
        page.keyboard.press("Enter")
        page.get_by_text("API key ✓").wait_for()
        ask(page, "Hello")
        assert answer_of(page).locator(".markdown").inner_text() == SAID
        assert "sk-canary" not in page.evaluate("JSON.stringify(localStorage) + document.cookie")
        assert "sk-canary" in page.evaluate("JSON.stringify(sessionStorage)")
        page.goto(f"{server.url}/docs")
        page.get_by_text("/v1/chat/completions", exact=True).wait_for()
        page.get_by_role("button", name="API key").click()
        page.get_by_role("button", name="Forget").click()
        assert "sk-canary" not in page.evaluate("JSON.stringify(sessionStorage)")


def test_a_key_for_inference_only_sees_what_it_may_and_reads_what_it_may_not(
    browser: Any, folder: Path, tmp_path: Path
):
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: {team: {scopes: [inference], secrets: [{key: sk-canary-4711}]}}\n")
    keys.chmod(0o600)
    with (
        ServerThread(folder, api_keys_file=str(keys)) as server,
        opened(browser, server.url, allowed="status of 40") as page,
    ):
        page.get_by_label("Key", exact=True).fill("sk-canary-4711")
        page.keyboard.press("Enter")
        ask(page, "Hello")
        assert answer_of(page).locator(".markdown").inner_text() == SAID
        page.get_by_role("link", name="Live").click()
        page.get_by_text("This key may not see this. GET /metrics needs a key with the scope `metrics`").wait_for()
        assert page.locator(".engine-state").inner_text() == "not allowed"
        page.get_by_role("link", name="Configuration").click()
        page.locator(".option").first.wait_for()
        page.goto(f"{server.url}/docs")
        link = page.get_by_role("link", name="openapi.json")
        link.wait_for()
        with page.expect_download() as download:
            link.click()
        assert json.loads(Path(download.value.path()).read_text())["openapi"].startswith("3.")


def test_live_values_are_plotted_and_read_by_keyboard(page: Any, server: ServerThread):
    page.get_by_role("link", name="Live").click()
    plot = page.locator("svg.plot").first
    server.is_held = True
    try:
        page.evaluate("""() => { window.asked = fetch("v1/completions", {method: "POST",
            headers: {"content-type": "application/json"}, body: JSON.stringify({prompt: "Hello"})}); }""")
        page.wait_for_function("() => /running: 1 now/.test(document.querySelector('svg.plot').ariaLabel)")
    finally:
        server.is_held = False
    page.evaluate("async () => { await window.asked; }")
    page.wait_for_function("() => /running: 0 now, 0 to 1/.test(document.querySelector('svg.plot').ariaLabel)")
    assert page.locator(".engine-state").inner_text() == "engine ready"
    plot.focus()
    plot.press("ArrowLeft")
    assert "ago" in page.locator(".readout").first.inner_text()
    assert page.locator(".readout:visible").count() == 8  # no GPU
    assert page.locator(".card:visible", has_text="CPU").locator(".value").all_inner_texts()[0] == "– engine"
    ticks = plot.locator("text").all_text_contents()[-3:]
    assert ticks == ["5 min", "2.5 min", "now"], "the axis is what is selected, also when less has been seen"
    page.get_by_text("1 min", exact=True).click()
    assert plot.locator("text").all_text_contents()[-3:] == ["60 s", "30 s", "now"]


def test_rates_are_of_what_grew_and_none_after_a_restart(page: Any):
    script = """async () => {
      const { parseMetrics, pointOf } = await import("./page/metrics.js");
      const text = (tokens, sum, count) => `# HELP x\\nstoker_generation_tokens_total{model_name="a b"} ${tokens}
stoker_time_to_first_token_seconds_bucket{le="1"} 5\\nstoker_time_to_first_token_seconds_sum{model_name="a b"} ${sum}
stoker_time_to_first_token_seconds_count{model_name="a b"} ${count}\\nvllm:generation_tokens_total 9\\n`;
      const at = (seconds, ...values) => ({ ...parseMetrics(text(...values)), at: seconds });
      const readings = [at(10, 100, 1, 2), at(12, 150, 4, 4), at(14, 20, 0, 0)];
      const points = readings.map((each, index) => pointOf(each, readings[index - 1]));
      return points.map(({ generated, first }) => [generated, first]);
    }"""
    assert page.evaluate(script) == [[None, None], [25, 1.5], [None, None]]


def test_usage_of_processes_and_gpus_is_shown_where_the_server_has_it(page: Any):
    script = """async () => {
      const { parseMetrics, pointOf } = await import("./page/metrics.js");
      const text = (cpu) => `stoker_engine_process_cpu_seconds_total{engine="0"} ${cpu}
stoker_engine_process_cpu_seconds_total{engine="1"} 1\nstoker_engine_process_resident_memory_bytes{engine="0"} 7
process_cpu_seconds_total 5\nstoker_gpu_utilization_ratio{gpu="0"} 0.5\nstoker_gpu_utilization_ratio{gpu="1"} 1
stoker_gpu_memory_used_bytes{gpu="0"} 20\nstoker_gpu_memory_used_bytes{gpu="1"} 40
stoker_gpu_memory_total_bytes{gpu="0"} 80\nstoker_gpu_memory_total_bytes{gpu="1"} 80\n`;
      const readings = ["", text(4), text(7)].map((each, index) => ({ ...parseMetrics(each), at: 2 * index }));
      const points = readings.map((each, index) => pointOf(each, readings[index - 1]));
      return points.map((point) => [point.engineCpu, point.serverCpu, point.engineMemory, point.serverMemory,
        point.gpu, point.gpuMemory]);
    }"""
    assert page.evaluate(script) == [
        [None] * 6,
        [None, None, 7, None, 0.75, 0.375],
        [1.5, 0, 7, None, 0.75, 0.375],
    ]


def test_the_starter_with_a_tool_is_offered_where_the_tool_can_be_used(page: Any):
    """With other tools in the settings its question was asked without the tool that answers it."""
    assert page.get_by_role("button", name="What is the weather in Rome?").count() == 0  # no format of calls is known
    with_tools(page)
    starter = page.get_by_role("button", name="What is the weather in Rome?")
    starter.wait_for()
    page.get_by_role("button", name="Settings", exact=True).click()
    page.locator("summary", has_text="Tools").click()
    page.locator("summary", has_text="Other fields").click()
    tools, more = page.get_by_label("Tools as JSON"), page.get_by_label("Fields of the request, as a JSON object")
    for field, text, is_offered in (
        (tools, '[{"type": "function", "function": {"name": "find"}}]', False),
        (tools, "[]", True),
        (tools, '[{"type": "function", "function": {"name": "get_weather"}}]', True),
        (tools, "[", False),
        (tools, "", True),
        (more, '{"tool_choice": "none"}', False),
        (more, '{"seed": 1}', True),
    ):
        field.fill(text)
        starter.wait_for(state="visible" if is_offered else "detached")
    tools.fill("[]")
    page.get_by_role("button", name="Use a sample tool").click()
    assert json.loads(tools.input_value())[0]["function"]["name"] == "get_weather"
    assert page.get_by_role("button", name="Use a sample tool").is_disabled()


def test_the_configuration_is_searched_by_option_value_and_origin(page: Any):
    page.get_by_role("link", name="Configuration").click()
    page.get_by_text("model.max_model_len", exact=True).wait_for()
    page.get_by_role("searchbox").fill("drain 30s")
    assert page.locator(".option").count() == 1
    assert page.locator(".option-name").inner_text() == "server.drain_timeout"
    assert page.locator(".option-value").inner_text() == "30s"
    page.locator(".option summary").press("Enter")
    assert page.get_by_text("Time that running requests have to finish after SIGTERM").is_visible()
    page.get_by_role("searchbox").fill("drain zzzz")
    page.get_by_text("No option contains these words.").wait_for()


def test_the_api_page_lists_the_routes_and_sends_a_request(browser: Any, server: ServerThread):
    with opened(browser, f"{server.url}/docs", allowed="status of 400") as page:
        page.get_by_role("heading", name="API").wait_for()
        page.locator(".route").first.wait_for()
        described = page.evaluate("async () => (await fetch('openapi.json')).json()")
        listed = set(
            zip(page.locator(".method").all_inner_texts(), page.locator(".path").all_inner_texts(), strict=True)
        )
        assert listed == {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
        page.get_by_role("searchbox").fill("temperature chat/completions")
        (route, *_) = [each for each in page.locator(".route").all() if each.is_visible()]
        route.locator("summary").first.press("Enter")
        route.get_by_role("cell", name="temperature", exact=True).wait_for()
        route.get_by_role("button", name="Send").click()
        route.get_by_text("HTTP 200").wait_for()
        assert SAID in route.locator(".response pre").inner_text()
        route.get_by_label("Body").fill('{"messages": 5}')
        route.get_by_role("button", name="Send").click()
        route.get_by_text("HTTP 400").wait_for()
        assert '"param": "messages"' in route.locator(".response pre").inner_text()


def test_a_file_is_uploaded_and_listed_on_the_api_page(browser: Any, folder: Path, tmp_path: Path):
    with ServerThread(folder, files_dir=str(tmp_path)) as server, opened(browser, f"{server.url}/docs") as page:
        upload = page.locator("#post_v1_files")
        upload.locator("summary").first.click()
        upload.get_by_label("file", exact=True).set_input_files(
            files=[{"name": "requests.jsonl", "mimeType": "text/plain", "buffer": b"{}"}]
        )
        upload.get_by_role("button", name="Send").click()
        upload.get_by_text("HTTP 200").wait_for()
        listing = page.locator("#get_v1_files")
        listing.locator("summary").first.click()
        listing.get_by_label("limit (optional)").fill("1")
        listing.get_by_role("button", name="Send").click()
        listing.get_by_text("HTTP 200").wait_for()
        assert "requests.jsonl" in listing.locator(".response pre").inner_text()
        identifier = json.loads(listing.locator(".response pre").inner_text())["data"][0]["id"]
        shown = page.locator("[id='get_v1_files_file_id']")
        shown.locator("summary").first.click()
        shown.get_by_label("file_id", exact=True).fill(identifier)
        shown.get_by_role("button", name="Send").click()
        shown.get_by_text("HTTP 200").wait_for()


def test_texts_are_ordered_by_their_similarity(page: Any):
    page.get_by_role("link", name="Similarity").click()
    page.get_by_label("Query").fill("the cat sat")
    page.get_by_label("Texts, one in each line").fill("a dog ran\n\n the cat sat \nHello")
    page.get_by_role("button", name="Compare").click()
    rows = page.locator(".similar li")
    page.get_by_text("3 texts").wait_for()
    assert rows.count() == 3
    assert rows.first.inner_text().split("\n") == ["1.000", "the cat sat"]
    scores = [float(row.locator(".similar-score").inner_text()) for row in rows.all()]
    assert scores == sorted(scores, reverse=True)
    page.reload()
    assert page.get_by_label("Query").input_value() == "the cat sat"


def test_what_cannot_be_compared_is_shown(browser: Any, server: ServerThread):
    with opened(browser, f"{server.url}/#similarity", allowed="400") as page:
        page.get_by_label("Texts, one in each line").fill("")
        page.get_by_role("button", name="Compare").click()
        page.get_by_role("alert").wait_for()
        assert "HTTP 400" in page.locator(".error").inner_text()


def test_a_model_that_only_compares_texts_has_no_chat(browser: Any, folder: Path):
    pooling = Pooling(heads=(PoolHead(task="embed", width=8, activation="normalize"),))
    with ServerThread(folder, pooling=pooling, generates=False) as server, opened(browser, server.url) as page:
        page.get_by_role("button", name="Compare").wait_for()
        assert page.locator("#views a").all_inner_texts() == ["Similarity", "Live", "Configuration", "API"]


def test_without_the_page_only_the_api_is_offered(browser: Any, folder: Path):
    with ServerThread(folder, disable_web_page=True) as server, opened(browser, f"{server.url}/docs") as page:
        page.locator(".route").first.wait_for()
        assert page.locator("#views a").all_inner_texts() == ["API"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_until_the_switch_is_used(browser: Any, server: ServerThread, scheme: str):
    with opened(browser, server.url, color_scheme=scheme) as page:
        other = {"light": "dark", "dark": "light"}[scheme]
        shown = "getComputedStyle(document.body).backgroundColor"
        first = page.evaluate(shown)
        page.get_by_role("button", name="Dark colours").click()
        second = page.evaluate(shown)
        assert first != second
        page.reload()
        assert page.evaluate(shown) == second
        assert page.evaluate("document.documentElement.dataset.theme") == other
        page.get_by_role("button", name="Dark colours").click()
        assert page.evaluate("localStorage.length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["#chat", "#live", "#config", "docs"])
def test_text_has_contrast_and_nothing_is_wider_than_a_phone(
    browser: Any, server: ServerThread, scheme: str, view: str
):
    contrast = """() => {
      const parse = (text) => text.match(/[0-9.]+/g).map(Number);
      const linear = (c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
      const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
      const ground = (element) => {
        for (; element; element = element.parentElement) {
          const colour = parse(getComputedStyle(element).backgroundColor);
          if (colour.length === 3 || colour[3] > 0.5) return colour;
        }
        return [255, 255, 255];
      };
      const low = [];
      for (const element of document.querySelectorAll("body *")) {
        const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
        if (!hasText || !element.checkVisibility() || element.closest("svg")) continue;
        const pair = [light(parse(getComputedStyle(element).color)), light(ground(element))];
        if ((Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05) < 4.5) low.push(element.outerHTML);
      }
      return [low, document.documentElement.scrollWidth - innerWidth];
    }"""
    url = f"{server.url}/{view}"
    with opened(browser, url, color_scheme=scheme, viewport={"width": 360, "height": 740}) as page:
        page.wait_for_load_state("networkidle")
        low, excess = page.evaluate(contrast)
        assert low == []
        assert excess <= 0
