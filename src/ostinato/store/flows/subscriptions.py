"""Subscriptions, changed by one at a time."""

from __future__ import annotations

from collections.abc import Sequence

from ...model.event import Subscription
from .calls import Call, Flow, encoded


def declaring_subscriptions(subscriptions: Sequence[Subscription], modules: Sequence[str]) -> Flow[None]:
    yield Call("lock_subscriptions", {})
    if subscriptions:
        yield Call("declare_subscriptions", {"subscriptions": encoded(subscriptions)})
    if modules:
        names = encoded([subscription.name for subscription in subscriptions])
        yield Call("undeclare_subscriptions", {"names": names, "modules": encoded(modules)})


def adding_subscription(subscription: Subscription) -> Flow[bool]:
    """Whether there was none of the name."""
    yield Call("lock_subscriptions", {})
    if (yield Call("subscription_views", {"name": subscription.name})):
        return False
    yield Call("declare_subscriptions", {"subscriptions": encoded([subscription])})
    return True


def switching_subscription(name: str, *, enabled: bool) -> Flow[bool]:
    yield Call("lock_subscriptions", {})
    return bool((yield Call("switch_subscription", {"name": name, "enabled": enabled})))


def removing_subscription(name: str) -> Flow[bool]:
    yield Call("lock_subscriptions", {})
    removed = yield Call("remove_subscription", {"name": name})
    yield Call("forget_parked", {"name": name})
    return bool(removed)


def having_caught_up(name: str) -> Flow[None]:
    yield Call("lock_subscriptions", {})
    yield Call("caught_up", {"name": name})
