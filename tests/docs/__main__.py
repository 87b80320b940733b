"""Writes the generated pages: `python -m tests.docs`."""

from .documents import ROOT, states_page

(ROOT / "docs/reference/states.md").write_text(states_page(), encoding="utf-8")
