"""Limits of several gateways: changed on all or on none, what could not be put back is named."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from gateway import schema
from gateway.admin_client import ADMIN_URL, Admin, AdminError, PartialError, change_limits
from gateway.control import Change, StaleError
from gateway.limits import LimitError
from tests.gateway.controlled import Held, controlled

WEIGHT, AGE = "flow.short.batch.weight", "flow.short.batch.max_age_s"


@pytest.fixture
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


class Direct:
    """A gateway in this process, spoken to without a network. ``before(n)`` runs before a post."""

    def __init__(self, name: str, held: Held) -> None:
        self.url = name
        self.control = held.control
        self.posts = 0
        self.before: Callable[[int], None] = lambda _: None
        self.after: Callable[[int], None] = lambda _: None

    def get(self, path: str) -> dict[str, Any]:
        assert path == "/admin/limits"
        return self.control.view()

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        assert path == "/admin/limits"
        assert body is not None
        self.posts += 1
        self.before(self.posts)
        change = Change(body["revision"], body["set"], body["expires_s"], body["check"])
        try:
            told = self.control.change("ops", change)
        except (LimitError, StaleError) as error:
            raise AdminError(self.url, str(error)) from error
        self.after(self.posts)
        return told

    @property
    def now(self) -> dict[str, Any]:
        return {path: entry["value"] for path, entry in self.control.view()["set"].items()}


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Direct, Direct]]:
    async with AsyncExitStack() as stack:
        made = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            held = await stack.enter_async_context(controlled(tmp_path / name))
            made.append(Direct(name, held))
        yield made[0], made[1]


def meddle(gateway: Direct) -> None:
    """Somebody else changes something."""
    revision = gateway.control.overlay.revision
    gateway.control.change("eve", Change(revision, {"flow.long.batch.weight": revision}))


def fail(gateway: Direct) -> None:
    raise AdminError(gateway.url, "connection lost", answered=False)


async def test_a_change_is_made_on_all(pair: tuple[Direct, Direct]) -> None:
    after = change_limits(pair, {WEIGHT: 3.0}, 60.0)
    assert [gateway.now for gateway in pair] == [{WEIGHT: 3.0}] * 2
    assert [seen["set"][WEIGHT]["expires_in_s"] for seen in after] == [60.0, 60.0]
    change_limits(pair, {WEIGHT: None})
    assert [gateway.now for gateway in pair] == [{}, {}]


async def test_what_one_would_refuse_is_made_on_none(pair: tuple[Direct, Direct]) -> None:
    with pytest.raises(AdminError, match=r"one: .*no such flow"):
        change_limits(pair, {"flow.short.nobody.weight": 3.0})
    assert [gateway.now for gateway in pair] == [{}, {}]
    assert [gateway.posts for gateway in pair] == [1, 0]


async def test_what_one_refuses_after_others_took_it_is_taken_back(
    pair: tuple[Direct, Direct],
) -> None:
    one, two = pair
    change_limits([one], {WEIGHT: 2.0, AGE: 7.0}, 100.0)
    two.before = lambda post: meddle(two) if post == 2 else None
    with pytest.raises(AdminError, match="two: the limits are at revision 2 now"):
        change_limits(pair, {WEIGHT: 3.0, AGE: None})
    assert one.now == {WEIGHT: 2.0, AGE: 7.0}
    assert one.get("/admin/limits")["set"][AGE]["expires_in_s"] == 100.0
    assert WEIGHT not in two.now


@pytest.mark.parametrize("made", [False, True])
async def test_where_it_is_not_known_whether_a_change_was_made_it_is_taken_back_too(
    pair: tuple[Direct, Direct], made: bool
) -> None:
    _, two = pair

    def lost(post: int) -> None:
        if post == 2:
            fail(two)

    if made:
        two.after = lost
    else:
        two.before = lost
    with pytest.raises(AdminError, match="two: connection lost"):
        change_limits(pair, {WEIGHT: 3.0})
    assert [gateway.now for gateway in pair] == [{}, {}]


async def test_a_change_that_is_not_there_afterwards_is_taken_back(
    pair: tuple[Direct, Direct],
) -> None:
    one, two = pair

    def undo(post: int) -> None:
        if post == 2:
            revision = two.control.overlay.revision
            two.control.change("eve", Change(revision, {WEIGHT: 9.0}))

    two.after = undo
    with pytest.raises(AdminError, match=r"two: flow.short.batch.weight is 9.0 afterwards, not 3"):
        change_limits(pair, {WEIGHT: 3.0})
    assert one.now == {}


async def test_what_can_not_be_put_back_is_named(pair: tuple[Direct, Direct]) -> None:
    one, two = pair
    two.before = lambda post: meddle(two) if post == 2 else None
    one.before = lambda post: fail(one) if post == 3 else None
    with pytest.raises(PartialError) as error:
        change_limits(pair, {WEIGHT: 3.0})
    assert "two: the limits are at revision 2" in str(error.value)
    assert "changed and not put back: one: connection lost" in str(error.value)
    assert one.now == {WEIGHT: 3.0}


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "unix:/no/socket/is/here"])
def test_a_gateway_that_is_not_there_is_named_with_the_flag_that_says_where_it_is(url: str) -> None:
    with pytest.raises(AdminError) as told:
        Admin(url, "a-token").get("/admin/routes")
    said = str(told.value)
    assert said.startswith(f"{url}: no answer: ")
    assert "--admin-url names" in said
    assert said.endswith(f"left out, it is $SLUICEGATE_ADMIN_URL or {ADMIN_URL})")


def test_the_usual_address_is_where_a_gateway_listens_that_was_not_told_otherwise() -> None:
    usual = schema.Admin()
    assert f"http://{usual.host}:{usual.port}" == ADMIN_URL
