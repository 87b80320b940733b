"""Subscriptions in the database: every change is seen by who reads them, and numbered in the order of commits."""

from __future__ import annotations

from msgspec import Raw

from ostinato.model.event import NOT_CAUGHT_UP, Subscription
from ostinato.store import flows
from ostinato.store.ports import Store
from tests.store.databases import Database, only_postgres


def a_subscription(name: str = "prices", **fields: object) -> Subscription:
    return Subscription(**{"name": name, "glob": "price.*", "function": "mix", "origin": "runtime", **fields})  # type: ignore[arg-type]


async def test_a_version_stands_for_one_state(store: Store):
    """Also where they are as many as before: a drainer compiles anew only when it sees another version."""
    seen: dict[tuple[int, int], list[Subscription]] = {}

    async def is_told() -> bool:
        found = await store.views.subscriptions()
        return seen.setdefault((await store.bearings()).version, found) == found

    assert await is_told()
    await store.add_subscription(a_subscription("a", since_sequence=NOT_CAUGHT_UP))
    assert await is_told()
    await store.remove_subscription("a")
    assert await is_told()
    await store.add_subscription(a_subscription("b", since_sequence=NOT_CAUGHT_UP))
    assert await is_told()
    await store.caught_up("b")
    assert await is_told()
    await store.switch_subscription("b", enabled=False)
    assert await is_told()
    await store.declare_subscriptions([a_subscription("b", glob="price.**"), a_subscription("c")])
    assert await is_told()
    await store.remove_subscription("c")
    await store.add_subscription(a_subscription("d"))
    assert await is_told()
    assert len(seen) >= 7


async def test_declaring_the_same_again_changes_nothing(store: Store):
    """So a worker that starts has no drainer compile anew."""
    declared = [a_subscription("a", mapper=Raw(b'{"a":"$.id"}'), filter="true"), a_subscription("b", ordered=True)]
    await store.declare_subscriptions(declared)
    before = await store.bearings()
    await store.declare_subscriptions(declared)
    assert before == await store.bearings()
    assert [each.name for each in await store.views.subscriptions()] == ["a", "b"]


async def test_a_verb_says_whether_there_was_something_to_do(store: Store):
    """Adding what is there changes nothing of it."""
    assert await store.add_subscription(a_subscription())
    assert not await store.add_subscription(a_subscription(glob="other"))
    assert not await store.switch_subscription("prices", enabled=True)
    assert await store.switch_subscription("prices", enabled=False)
    assert not await store.switch_subscription("nosuch", enabled=False)
    ((view),) = await store.views.subscription_views()
    assert (view.glob, view.enabled, view.function_known, view.parked) == ("price.*", False, True, 0)
    assert await store.remove_subscription("prices")
    assert not await store.remove_subscription("prices")


async def test_what_is_left_over_is_of_the_same_modules(store: Store):
    """Others' code is none of our business, and a module is not another that begins like it."""
    origins = ["code shop:a", "code shop.prices:a", "code shopping:a", "code other:a", "runtime"]
    await store.declare_subscriptions([a_subscription(str(n), origin=origin) for n, origin in enumerate(origins)])
    await store.declare_subscriptions([a_subscription("1", origin="code shop.prices:a")], ["shop", "shop.prices"])
    found = [view.origin for view in await store.views.subscription_views()]
    assert found == ["undeclared shop:a", *origins[1:]]


@only_postgres
async def test_changes_are_numbered_in_the_order_of_commits(database: Database):
    """A change holds the others up until its commit: one that is seen has none before it that is not."""
    store = database.store
    await store.add_subscription(a_subscription())
    held = (
        "select mode from pg_locks where relation = 'ostinato.subscriptions'::regclass and mode like 'Share%Exclusive%'"
    )
    for change in (
        flows.declaring_subscriptions([a_subscription("b")], []),
        flows.adding_subscription(a_subscription("c")),
        flows.switching_subscription("prices", enabled=False),
        flows.having_caught_up("prices"),
        flows.removing_subscription("prices"),
    ):
        async with store.begin() as transaction:
            await transaction.ask(change)
            assert await transaction.fetch(held) == [{"mode": "ShareRowExclusiveLock"}]
