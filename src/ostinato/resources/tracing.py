"""Following a chain of events and runs, back to where it began and on to all that came of it."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UnknownEvent
from ..model.history import EventLink, Kind, Link, RunLink, Trace, Traced, cause_in, traced
from ..store.ports import Views

MOST = 1000


class Tracing:
    """A walk that asks for a whole generation at a time, and meets everybody once."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._met: set[str] = set()

    async def of(self, event_id: str) -> Trace:
        links = await self._views.event_links(ids=[event_id])
        if not links:
            raise UnknownEvent(event_id)
        event = links[0]
        self._met.add(event.id)
        ancestors = await self._ancestors(event)
        descendants, truncated = await self._descendants(event)
        parents = [*(link.id for link in ancestors), None]
        chain = [traced(link, depth=-place, parent=parents[place]) for place, link in enumerate([event, *ancestors])]
        return Trace(chain[0], chain[:0:-1], descendants, truncated or len(ancestors) >= MOST)

    # --- back

    async def _ancestors(self, event: EventLink) -> list[Link]:
        """The nearest first."""
        found: list[Link] = []
        link = await self._before(event)
        while link is not None and link.id not in self._met and len(found) < MOST:
            self._met.add(link.id)
            found.append(link)
            link = await self._before(link)
        return found

    async def _before(self, link: Link) -> Link | None:
        """What it follows from. A run may be gone by retention; then the event behind it is."""
        if link.cause is not None and (found := await self._find(*link.cause)) is not None:
            return found
        behind = cause_in(link.caused_by) if isinstance(link, EventLink) else None
        return None if behind is None else await self._find(*behind)

    async def _find(self, kind: Kind, wanted: str) -> Link | None:
        look = self._views.event_links if kind == "event" else self._views.run_links
        links: Sequence[Link] = await look(ids=[wanted])
        return links[0] if links else None

    # --- on

    async def _descendants(self, event: EventLink) -> tuple[list[Traced], bool]:
        children: dict[str, list[Link]] = {}
        generation: list[Link] = [event]
        while generation and len(self._met) < MOST:
            following = await self._after(generation)
            generation = []
            for parent, link in following:
                if link.id not in self._met:
                    self._met.add(link.id)
                    children.setdefault(parent, []).append(link)
                    generation.append(link)
        return list(_in_order(event.id, children)), bool(generation)

    async def _after(self, links: Sequence[Link]) -> list[tuple[str, Link]]:
        """What follows from a generation, each with the id of its parent: runs first, so that what a run recorded is
        found below it."""
        events = {link.id: link for link in links if isinstance(link, EventLink)}
        runs = {link.id: link for link in links if isinstance(link, RunLink)}
        reasons = [f"event:{link.type}:{link.id}" for link in events.values()] + [f"run:{run_id}" for run_id in runs]
        started = await self._views.run_links(reasons=reasons)
        causes = [f"event:{event_id}" for event_id in events] + [f"run:{run_id}" for run_id in runs]
        recorded = await self._views.event_links(causes=causes, runs=list(runs))
        return [
            *((run.cause[1], run) for run in started if run.cause is not None),
            *((self._parent(event, runs), event) for event in recorded if not _comes_later(event, started)),
        ]

    @staticmethod
    def _parent(event: EventLink, runs: dict[str, RunLink]) -> str:
        if event.run_id in runs:
            return str(event.run_id)
        cause = cause_in(event.caused_by)
        return cause[1] if cause is not None else ""


def _comes_later(event: EventLink, started: Sequence[RunLink]) -> bool:
    """Whether a run recorded it that is found in the same generation: then it is found with the next."""
    return any(event.run_id == run.id for run in started)


def _in_order(root: str, children: dict[str, list[Link]]) -> list[Traced]:
    """Depth first, without recursion: a chain may be long."""
    made: list[Traced] = []
    waiting = [(link, root, 1) for link in reversed(children.get(root, []))]
    while waiting:
        link, parent, depth = waiting.pop()
        made.append(traced(link, depth=depth, parent=parent))
        waiting.extend((child, link.id, depth + 1) for child in reversed(children.get(link.id, [])))
    return made
