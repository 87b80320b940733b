"""The other side: a made-up music service. It is slow, fails every fifth call, and does not know everything.

Nothing here knows of Ostinato. It stands for the metadata API, the language model or the mailer that is the reason why
work is done in the background at all.
"""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple

FASTEST, SLOWEST = 0.4, 1.8
ONE_CALL_IN = 5


class ServiceUnavailable(Exception):
    """The service is too busy; it may be better soon."""


class UnknownTrack(Exception):
    """The service has never heard of it; asking again will not help."""


class Track(NamedTuple):
    artist: str
    title: str


async def album_of(track: Track) -> str:
    """The album that a track is on, after a while."""
    await asyncio.sleep(random.uniform(FASTEST, SLOWEST))
    if track not in ALBUMS:
        raise UnknownTrack("404 no such track")
    if track == CURSED or random.randrange(ONE_CALL_IN) == 0:
        raise ServiceUnavailable("503 too busy, try later")
    return ALBUMS[track]


UNHEARD_OF = Track("The Neighbours", "Garage tape no. 3")
CURSED = Track("Radiohead", "Idioteque")

ALBUMS = {
    Track("Nina Simone", "Sinnerman"): "Pastel Blues",
    Track("Cat Power", "Metal Heart"): "Moon Pix",
    Track("Miles Davis", "So What"): "Kind of Blue",
    Track("Kraftwerk", "Spacelab"): "The Man-Machine",
    Track("Kate Bush", "Hounds of Love"): "Hounds of Love",
    Track("Fela Kuti", "Zombie"): "Zombie",
    Track("Portishead", "Roads"): "Dummy",
    CURSED: "Kid A",
    Track("Aretha Franklin", "Respect"): "I Never Loved a Man the Way I Love You",
    Track("Talk Talk", "Life's What You Make It"): "The Colour of Spring",
    Track("Can", "Vitamin C"): "Ege Bamyasi",
    Track("Joni Mitchell", "A Case of You"): "Blue",
    Track("Massive Attack", "Teardrop"): "Mezzanine",
    Track("Stereolab", "Cybele's Reverie"): "Emperor Tomato Ketchup",
    Track("Sonic Youth", "Teen Age Riot"): "Daydream Nation",
    Track("Nick Drake", "Pink Moon"): "Pink Moon",
    Track("Erykah Badu", "On & On"): "Baduizm",
    Track("Television", "Marquee Moon"): "Marquee Moon",
    Track("Tom Waits", "Hang On St. Christopher"): "Franks Wild Years",
    Track("Air", "La femme d'argent"): "Moon Safari",
    Track("PJ Harvey", "Rid of Me"): "Rid of Me",
    Track("Arvo Pärt", "Fratres"): "Tabula Rasa",
    Track("Low", "Sunflower"): "Things We Lost in the Fire",
    Track("Bill Evans", "Peace Piece"): "Everybody Digs Bill Evans",
    Track("Tinariwen", "Matadjem Yinmixan"): "Aman Iman",
    Track("Philip Glass", "Opening"): "Glassworks",
    Track("Blondie", "Heart of Glass"): "Parallel Lines",
    Track("Broadcast", "Come On Let's Go"): "The Noise Made by People",
    Track("Marvin Gaye", "Inner City Blues"): "What's Going On",
    Track("Neu!", "Hallogallo"): "Neu!",
}
