"""Databases behind one seam: `ports` says what the engine may ask, `postgres` and `sqlite` answer."""
