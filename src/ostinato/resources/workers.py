"""`app.workers`: who works."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..model.view import FunctionView, WorkerView

if TYPE_CHECKING:
    from ..engine.site import Site


class Workers:
    def __init__(self, site: Site) -> None:
        self._site = site

    async def list(self, *, dead: bool = False) -> Sequence[WorkerView]:
        """Workers with a lease; those that died or ended lately too, if asked for."""
        async with self._site.store() as store:
            return await store.views.workers(dead=dead)

    async def functions(self) -> Sequence[FunctionView]:
        """The functions that workers have declared."""
        async with self._site.store() as store:
            return await store.views.functions()
