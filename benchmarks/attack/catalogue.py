"""Attack: one way to harm a server, with its limits. A family module registers its attacks in a Catalogue."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from .server import Server


class Fell(Exception):
    """The server did not behave as promised. The message says how, in one sentence."""


@dataclass
class Scene:
    """What an attack has to work with."""

    random: Random  # seeded from the run's seed and the attack's name
    folder: Path  # empty
    slowness: float  # how many times slower than an idle machine this one is now; multiplies limits of time
    running: Server | None = None

    @property
    def server(self) -> Server:
        assert self.running is not None, "the attack is not declared with on_server=True"
        return self.running

    @property
    def address(self) -> tuple[str, int]:
        return self.server.address


@dataclass(frozen=True)
class Attack:
    family: str
    name: str
    run: Callable[[Scene], str]  # returns what was seen, in a few words; raises Fell
    limit_s: float = 30.0  # on an idle machine
    on_server: bool = True  # False: it starts its own processes, and there is no bystander
    options: tuple[str, ...] = ()  # of the server that it attacks
    max_files: int | None = None  # limit of file descriptors of each of the server's processes
    memory_mib: float = 300.0  # how much the anonymous memory of all processes may grow during the attack
    bystander_may_fail: bool = False  # the attack takes something that new connections need, as long as it runs

    @property
    def id(self) -> str:
        return f"{self.family}/{self.name}"


@dataclass
class Catalogue:
    family: str
    attacks: list[Attack] = field(default_factory=list)

    def add(self, name: str, run: Callable[[Scene], str], **limits: object) -> None:
        self.attacks.append(Attack(self.family, name, run, **limits))  # type: ignore[arg-type]

    def attack(self, **limits: object) -> Callable[[Callable[[Scene], str]], Callable[[Scene], str]]:
        """Registers a function under its own name."""

        def register(run: Callable[[Scene], str]) -> Callable[[Scene], str]:
            self.add(run.__name__.replace("_", "-"), run, **limits)
            return run

        return register


def expect(holds: bool, sentence: str) -> None:
    """Raises Fell."""
    if not holds:
        raise Fell(sentence)


def choose(attacks: Iterable[Attack], wanted: list[str]) -> list[Attack]:
    """Attacks whose family or id is wanted, or whose id begins with a wanted text; all without a wish.

    Raises ValueError for a wish that chooses nothing.
    """
    known = list(attacks)
    for wish in wanted:
        if not any(attack.id.startswith(wish) for attack in known):
            raise ValueError(f"no attack is called {wish!r}")
    return [attack for attack in known if not wanted or any(attack.id.startswith(wish) for wish in wanted)]
