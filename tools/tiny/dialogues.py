"""Training text of builtin:tiny: randomly sampled dialogues, each with its one correct answer.

Every kind of dialogue has a held-out part that training never samples: phrasings of questions, pairs of numbers, values
in tool calls. Evaluation samples only from the held-out part.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .options import UNSET, Option

Message = dict[str, Any]


@dataclass(frozen=True)
class Dialogue:
    kind: str
    messages: list[Message]  # up to and including the last question
    answer: str  # without the thought
    thought: str  # text before the answer when thinking is enabled
    tools: list[dict[str, Any]] = field(default_factory=list)
    required: tuple[str, ...] = ()  # texts that a correct answer contains


# Phrasings for each kind of question, with {x} for the option; the last two are held out.
QUESTIONS: dict[str, list[str]] = {
    "meaning": [
        "What does {x} do?",
        "What is {x}?",
        "what does {x} mean",
        "Explain {x}.",
        "Explain {x} to me, please.",
        "What is {x} good for?",
        "Tell me about {x}.",  # words: ok: a user's question
        "Can you tell me what {x} does?",  # words: ok: a user's question
        "I found {x} in a manifest. What is it?",
        "{x}?",
        "Describe the option {x}.",
        "What happens when I set {x}?",
        "help {x}",
        "Why would I set {x}?",
        "What is the purpose of {x}?",
        "How does {x} work?",
        "What does the option {x} do?",
        "Please describe {x}.",
        "Do you know {x}?",
        "I do not understand {x}.",
        "Why is there {x}?",
        "What does {x} change?",
        "When do I need {x}?",
        "what is {x} used for?",
        "Could you describe what {x} changes?",
        "Say in one sentence what {x} does.",
        "Could you explain what {x} is for?",
        "What's {x} for?",
    ],
    "default": [
        "What is the default of {x}?",
        "default of {x}",
        "What is {x} by default?",
        "Which value does {x} have if I do not set it?",
        "What is the default value of {x}?",
        "Tell me the default of {x}.",  # words: ok: a user's question
        "What applies when {x} is not given?",
        "Default value for {x}, please.",
        "And if I omit {x}?",
        "What if {x} is missing from my manifest?",
        "what's {x} if unset?",
        "What does {x} default to?",
        "Is there a default for {x}?",
        "Without {x} in the file, which value is used?",
        "I did not write {x}. Which value do I get?",
        "When {x} is not set, what happens?",
        "What's the default for {x}?",
        "If I leave {x} out, what is used?",
    ],
    "place": [
        "Where in the YAML does {x} go?",
        "In which section is {x}?",
        "Where do I put {x}?",
        "Which section of the manifest holds {x}?",
        "Where does {x} belong?",
        "What section is {x} in?",
        "Where is {x} in the YAML?",
        "{x}: which section?",
        "Show me the place of {x} in the manifest.",
        "I want to add {x} to my file. Where?",
        "What do I write above {x} in the YAML?",
        "To which section does {x} belong?",
        "How do I write {x} in the manifest?",
        "Under which section do I write {x}?",
    ],
    "flag": [
        "Which flag sets {x}?",
        "What is the flag for {x}?",
        "How do I set {x} on the command line?",
        "command line flag of {x}",
        "flag for {x}?",
        "Which argument of engine up is {x}?",
        "How do I pass {x} to engine up?",
        "What do I type to set {x}?",
        "As a flag, how is {x} spelled?",
        "Show me the command line option for {x}.",
        "I do not want a file. How do I give {x}?",
        "Name the flag of {x}.",
        "What is {x} called on the command line?",
        "Give me the flag for {x}.",
    ],
    "choices": [
        "Which values can {x} take?",
        "What are the choices of {x}?",
        "What can I set {x} to?",
        "Allowed values of {x}?",
        "What may {x} be?",
        "What values are there for {x}?",
        "Options for {x}?",
        "What else can {x} be?",
        "Which values does {x} accept?",
        "List the choices of {x}.",
    ],
}
HELD_OUT_PHRASINGS = 2
GREETINGS = ["Hello", "Hi", "Hi!", "Hello there", "Good morning", "Hey", "hello!"]
WHO = ["Who are you?", "What are you?", "What is your name?", "who are you", "What can you do?", "Introduce yourself."]
I_AM = "I am the small model that is part of Stoker. I explain options, compute small sums and write tool calls."
THANKS = ["Thanks!", "Thank you", "thanks", "Great, thank you."]
OFF_TOPIC = [
    "Write a poem about the sea.",
    "Who won the cup in 1998?",
    "What is the capital of France?",
    "Translate this into German: good morning.",
    "Tell me a joke.",  # words: ok: a user's question
    "How do I bake bread?",
    "What is the meaning of life?",
    "Summarise the news.",
    "Write a Python function that sorts a list.",
    "Is it better to rent or to buy?",
]
I_KNOW = "I am a very small model: I know only Stoker's options, small sums, JSON and tool calls."
SYSTEMS = ["You are a helpful assistant.", "You help people who run LLM servers.", "Answer briefly.", "Be concise."]
NAMES = [
    "Ada",
    "Ben",
    "Carla",
    "David",
    "Eva",
    "Finn",
    "Greta",
    "Hugo",
    "Ines",
    "Jan",
    "Kira",
    "Leo",
    "Mona",
    "Nils",
    "Olga",
    "Paul",
    "Rosa",
    "Sven",
    "Tina",
    "Udo",
]
CITIES = [
    "Paris",
    "London",
    "Berlin",
    "Madrid",
    "Rome",
    "Vienna",
    "Oslo",
    "Cairo",
    "Tokyo",
    "Delhi",
    "Lima",
    "Boston",
    "Quito",
    "Seoul",
    "Sydney",
    "Prague",
    "Warsaw",
    "Athens",
    "Dublin",
    "Zurich",
    "Geneva",
    "Milan",
    "Naples",
    "Porto",
    "Hanoi",
    "Manila",
    "Dakar",
    "Accra",
    "Tunis",
    "Riga",
]
HELD_OUT_CITIES = ["Lisbon", "Helsinki", "Toronto", "Nairobi", "Bogota", "Munich", "Lagos", "Denver", "Kyoto", "Bergen"]
# Syllables of made-up words. They are many, so that the model learns to copy a word instead of a list of names.
ONSETS = [*"bcdfghjklmnprstvwz", "br", "ch", "dr", "fl", "gr", "kl", "pr", "qu", "sk", "st", "th", "tr"]
VOWELS = [*"aaeeiioouuy", "ai", "au", "ea", "ee", "ie", "oo", "ou"]
CODAS = ["", "", "", "", *"lmnrstx", "ld", "ng", "nk", "rg", "rn", "st"]


def _tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": kind} for key, kind in parameters.items()},
                "required": list(parameters),
            },
        },
    }


ADD = _tool("add", "Add two numbers", a="integer", b="integer")
SEARCH = _tool("search_options", "Search the options of the server", query="string")


class Writer:
    """Samples dialogues: with `held_out` from the held-out part only, otherwise from the training part only."""

    def __init__(self, options: list[Option], seed: int, held_out: bool = False) -> None:
        self.options = options
        self.names = {option.name for option in options}
        self.random = random.Random(seed)
        self.held_out = held_out
        self._kinds: list[tuple[float, Callable[[], Dialogue]]] = [
            (0.38, self.option_question),
            (0.22, self.sum),
            (0.11, self.list_of_sums),
            (0.12, self.tool_call),
            (0.03, self.tool_answer),
            (0.04, self.json_object),
            (0.04, self.echo),
            (0.03, self.unknown_option),
            (0.03, self.small_talk),
        ]

    def sample(self) -> Dialogue:
        weights = [weight for weight, _ in self._kinds]
        kind = self.random.choices([write for _, write in self._kinds], weights)[0]
        return kind()

    # -- options

    def option_question(self) -> Dialogue:
        kinds = ["meaning", "meaning", "meaning", "default", "default", "place", "flag", "choices"]
        option = self.random.choice(self.options)
        return self.about(option, self.random.choice(kinds))

    def about(self, option: Option, kind: str) -> Dialogue:
        if kind == "choices" and not option.choices:
            kind = "meaning"
        if kind == "place" and option.section is None:
            kind = "default"
        phrasings = QUESTIONS[kind]
        split = len(phrasings) - HELD_OUT_PHRASINGS
        phrasing = self.random.choice(phrasings[split:] if self.held_out else phrasings[:split])
        answer, required = _answer(option, kind)
        return self._dialogue(
            kind, phrasing.format(x=self._spelling(option)), answer, f"This is about {option.path}.", required=required
        )

    def _spelling(self, option: Option) -> str:
        spelling = self.random.choice([option.name, option.name, option.flag, option.path])
        return f"`{spelling}`" if self.random.random() < 0.3 else spelling

    def unknown_option(self) -> Dialogue:
        while True:
            parts = [self._word(), self.random.choice(["size", "mode", "limit", "path", "rate", self._word()])]
            name = "_".join(parts)
            if name not in self.names:
                break
        spelling = self.random.choice([name, f"`{name}`", "--" + name.replace("_", "-")])
        question = self.random.choice(QUESTIONS["meaning"][:-HELD_OUT_PHRASINGS]).format(x=spelling)
        answer = f"There is no option `{name}`. `engine explain {name}` searches for similar names."
        return self._dialogue("unknown", question, answer, f"There is no {name}.", required=(name,))

    # -- sums

    def sum(self) -> Dialogue:
        a, sign, b, result = self._sum()
        plus = sign == "+"
        forms = [
            f"What is {a} {sign} {b}?",
            f"{a}{sign}{b}",
            f"{a} {sign} {b} =",
            f"Compute {a} {sign} {b}.",
            f"How much is {a} {sign} {b}?",
            f"What is {a} {'plus' if plus else 'minus'} {b}?",
            f"Add {a} and {b}." if plus else f"Take {b} from {a}.",
        ]
        thought = _column_sum(a, b) if plus else _column_difference(a, b)
        answer = f"{a} {sign} {b} = {result}"
        return self._dialogue("sum", self.random.choice(forms), answer, thought, required=(f"= {result}",))

    def list_of_sums(self) -> Dialogue:
        sums = [self._sum() for _ in range(self.random.randint(3, 5))]
        question = ", ".join(f"{a} {sign} {b}" for a, sign, b, _ in sums)
        answer = ", ".join(f"{a} {sign} {b} = {result}" for a, sign, b, result in sums)
        return self._dialogue("sums", question, answer, "One after the other.", required=(answer,))

    def _sum(self) -> tuple[int, str, int, int]:
        """Two numbers under 100, their sign and the result, never under 0."""
        # smaller numbers more often in training: they teach the sums of single digits
        largest = 19 if not self.held_out and self.random.random() < 0.3 else 99
        while True:
            a, b = self.random.randint(0, largest), self.random.randint(0, largest)
            plus = self.random.random() < 0.6
            if not plus and a < b:
                a, b = b, a
            if ((a * 101 + b * 7919) % 17 == 0) == self.held_out:
                return (a, "+", b, a + b) if plus else (a, "-", b, a - b)

    # -- JSON

    def json_object(self) -> Dialogue:
        if self.random.random() < 0.5:
            name, age = self._name(), self.random.randint(1, 99)
            question = self.random.choice(
                [
                    f"Give me a JSON object with the name {name} and the age {age}.",
                    f"JSON: name {name}, age {age}",
                    f"Write {name}, {age} years old, as JSON.",
                ]
            )
            value: Any = {"name": name, "age": age}
        else:
            option, number = self.random.choice([o for o in self.options if o.section]), self.random.randint(0, 999)
            question = self.random.choice(
                [f"Write {option.path} = {number} as JSON.", f"JSON for {option.path} {number}, please."]
            )
            value = {option.section: {option.name: number}}
        text = json.dumps(value)
        return self._dialogue("json", question, text, "The answer is JSON.", required=(text,))

    def _name(self) -> str:
        return self.random.choice(NAMES) if self.random.random() < 0.5 else self._word().capitalize()

    # -- copies

    def echo(self) -> Dialogue:
        """Teaches copying, which tool calls need for names and numbers."""
        words = [self._name(), self._word(), str(self.random.randint(0, 9999)), self.random.choice(self.options).name]
        text = " ".join(self.random.choices([*words, self._word()], k=self.random.randint(1, 4)))
        form = self.random.choice(["Repeat: {}", "Repeat after me: {}", "Say {}", "Echo: {}"])
        return self._dialogue("echo", form.format(text), text, "I repeat it.", required=(text,))

    # -- tools

    def tool_call(self) -> Dialogue:
        kind = self.random.choice(["weather", "weather", "time", "add", "search", "no tool"])
        if kind == "no tool":
            question, _ = self._weather()
            answer = "I have no tool to look that up."
            return self._dialogue("no tool", question, answer, "There is no tool for it.", required=("no tool",))
        arguments: dict[str, Any]
        if kind == "weather":
            question, city = self._weather()
            tool, arguments = self._city_tool("weather", city)
        elif kind == "time":
            city = self._city()
            question = self.random.choice(
                [f"What time is it in {city}?", f"Time in {city}?", f"How late is it in {city}?"]
            )
            tool, arguments = self._city_tool("time", city)
        elif kind == "add":
            a, b = self.random.randint(0, 9999), self.random.randint(0, 9999)
            forms = [f"Add {a} and {b} with the tool.", f"Use the tool: {a} + {b}", f"What is {a} + {b}? Use add."]
            question, tool, arguments = self.random.choice(forms), ADD, {"a": a, "b": b}
        else:
            query = f"{self._word()} {self._word()}"
            forms = [f"Search the options for {query}.", f"Find options about {query}.", f"Look up {query} in options."]
            question, tool, arguments = self.random.choice(forms), SEARCH, {"query": query}
        name = tool["function"]["name"]
        call = json.dumps({"name": name, "arguments": arguments})
        answer = f"<tool_call>\n{call}\n</tool_call>"
        return self._dialogue("tool call", question, answer, f"I should call {name}.", self._offer(tool), (call,))

    def tool_answer(self) -> Dialogue:
        question, city = self._weather()
        tool, arguments = self._city_tool("weather", city)
        degrees = self.random.randint(-20, 40)
        call = {"type": "function", "function": {"name": tool["function"]["name"], "arguments": arguments}}
        messages = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": json.dumps({"temperature": degrees})},
        ]
        answer = f"It is {degrees} degrees in {city}."
        return Dialogue("tool answer", messages, answer, "The tool has answered.", [tool], (answer,))

    def _city_tool(self, subject: str, city: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """A tool that returns the weather or the time of a city, and the arguments of its call. The names of the tool
        and its parameter vary, so that the model has to read them."""
        name = self.random.choice([f"get_{subject}", f"get_{subject}", f"current_{subject}", f"{subject}_of"])
        parameter = self.random.choice(["city", "city", "location", "place"])
        return _tool(name, f"Current {subject} in a city", **{parameter: "string"}), {parameter: city}

    def _offer(self, tool: dict[str, Any]) -> list[dict[str, Any]]:
        others = [self._city_tool("weather", "")[0], self._city_tool("time", "")[0], ADD, SEARCH]
        others = [other for other in others if other["function"]["description"] != tool["function"]["description"]]
        offered = [tool, *self.random.sample(others, self.random.choice([0, 0, 0, 1, 1, 2]))]
        self.random.shuffle(offered)
        return offered

    def _weather(self) -> tuple[str, str]:
        city = self._city()
        forms = [
            f"What is the weather in {city}?",
            f"How is the weather in {city}?",
            f"Weather in {city}?",
            f"Is it warm in {city} today?",
            f"What's the weather like in {city}?",
        ]
        return self.random.choice(forms), city

    def _city(self) -> str:
        if self.held_out:
            return self.random.choice(HELD_OUT_CITIES)
        if self.random.random() < 0.3:
            return self.random.choice(CITIES)
        # made-up names teach the model to copy words that it never saw
        return " ".join(self._word().capitalize() for _ in range(self.random.choice([1, 1, 1, 1, 1, 2])))

    def _word(self) -> str:
        pick = self.random.choice
        return "".join(pick(ONSETS) + pick(VOWELS) + pick(CODAS) for _ in range(self.random.randint(1, 3)))

    # -- small talk

    def small_talk(self) -> Dialogue:
        question, answer = self.random.choice(
            [
                (self.random.choice(GREETINGS), "Hello! " + I_AM),
                (self.random.choice(WHO), I_AM),
                (self.random.choice(THANKS), "You are welcome."),
                (self.random.choice(OFF_TOPIC), I_KNOW),
            ]
        )
        return self._dialogue("small talk", question, answer, "A short answer is enough.", required=(answer,))

    def _dialogue(
        self,
        kind: str,
        question: str,
        answer: str,
        thought: str,
        tools: list[dict[str, Any]] | None = None,
        required: tuple[str, ...] = (),
    ) -> Dialogue:
        messages: list[Message] = []
        if self.random.random() < 0.15:
            messages.append({"role": "system", "content": self.random.choice(SYSTEMS)})
        if not self.held_out and self.random.random() < 0.1:
            messages += self._earlier_turn()
        messages.append({"role": "user", "content": question})
        return Dialogue(kind, messages, answer, thought, tools or [], required)

    def _earlier_turn(self) -> list[Message]:
        option = self.random.choice(self.options)
        question = QUESTIONS["default"][0].format(x=option.name)
        answer, _ = _answer(option, "default")
        return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _answer(option: Option, kind: str) -> tuple[str, tuple[str, ...]]:
    """The answer to a question about an option, and the texts that a correct answer contains."""
    name = f"`{option.path}`"
    default = f"It is {UNSET} by default." if option.default == UNSET else f"The default is `{option.default}`."
    match kind:
        case "meaning":
            note = {"current": "", "deprecated": " It is deprecated.", "removed": " It was removed in newer releases."}
            return f"{name}: {option.meaning}. {default}{note[option.status]}", (option.meaning, default)
        case "default":
            return f"{name}: {default}", (default,)
        case "place":
            return f"Under `{option.section}:`, as `{option.name}`.", (f"`{option.section}:`", f"`{option.name}`")
        case "flag":
            return f"`{option.flag}` sets {name}.", (f"`{option.flag}`",)
        case "choices":
            listed = ", ".join(f"`{choice}`" for choice in option.choices)
            return f"{name} accepts one of {listed}.", (listed,)
    raise ValueError(kind)


def _column_difference(a: int, b: int) -> str:
    borrow = int(a % 10 < b % 10)
    ones, tens = 10 * borrow + a % 10 - b % 10, a // 10 - borrow - b // 10
    return (
        f"{10 * borrow + a % 10} - {b % 10} = {ones}, {a // 10} - {b // 10} - {borrow} = {tens}, so {tens * 10 + ones}."
    )


def _column_sum(a: int, b: int) -> str:
    ones = a % 10 + b % 10
    carry = ones // 10
    tens = a // 10 + b // 10 + carry
    return f"{a % 10} + {b % 10} = {ones}, {a // 10} + {b // 10} + {carry} = {tens}, so {tens * 10 + ones % 10}."
