"""The verbs behind `app.*`, the CLI and everything else: one small object per resource."""
