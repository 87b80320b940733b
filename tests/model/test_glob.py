"""Globs over event types, and finding those that mean a type among many."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato import ConfigError
from ostinato.model import glob as globs
from ostinato.model.glob import ACROSS, LONGEST, GlobIndex, Segment, checked, fits, matches, segments

# --- what they mean -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("glob", "means", "does_not_mean"),
    [
        ("price.changed", ["price.changed"], ["price", "price/changed", "price.changed.now", "xprice.changed"]),
        ("price.*", ["price.changed"], ["price", "price/changed", "price.list.changed"]),
        ("price/*", ["price/changed"], ["price.changed"]),
        ("*", ["price"], ["price.changed", "a/b"]),
        ("pr*ed.*", ["priced.now", "pred.x"], ["priced", "pricex.now"]),
        ("**", ["price", "price.changed", "a/b.c"], []),
        (
            "price.**",
            ["price", "price.changed", "price.list.changed", "price.list/changed"],
            ["price/changed", "prices"],
        ),
        ("track/**", ["track", "track/a.b"], ["track.a/b"]),
        ("**.changed", ["changed", "price.changed", "a/b.changed"], ["a/changed", "price.changed.now"]),
        ("a.**.z", ["a.z", "a.b.z", "a.b/c.z"], ["a", "z", "a/b.z", "a.b/z"]),
        ("a/**.z", ["a.z", "a/b.z"], ["a/z", "a.b.z"]),
        ("**.x.**", ["x", "a.x", "x.x", "x.b", "a.x.b"], ["a/x", "x/b", "y"]),
        ("a.**.*.z", ["a.b.z", "a.b.c.z"], ["a.z"]),
    ],
)
def test_what_a_glob_means(glob: str, means: list[str], does_not_mean: list[str]):
    """`*` stays within a segment, `**` takes whole ones or none, and `.` is not `/`."""
    assert [] == [kind for kind in means if not matches(glob, kind)]
    assert [] == [kind for kind in does_not_mean if matches(glob, kind)]


def naive(glob: list[Segment], text: list[Segment], *, first: bool = True) -> bool:
    """Tries everything."""
    if not glob:
        return not text
    head, *rest = glob
    if head.text == ACROSS:
        taken = (count for count in range(len(text) + 1) if not count or first or text[0].separator == head.separator)
        return any(naive(rest, text[count:], first=first and not count) for count in taken)
    if not text or not (first or text[0].separator == head.separator):
        return False
    return naive_fits(head.text, text[0].text) and naive(rest, text[1:], first=False)


def naive_fits(glob: str, text: str) -> bool:
    if not glob:
        return not text
    if glob[0] == "*":
        return any(naive_fits(glob[1:], text[place:]) for place in range(len(text) + 1))
    return text[:1] == glob[0] and naive_fits(glob[1:], text[1:])


SEPARATOR = st.sampled_from("./")
WORD = st.text("ab", min_size=1, max_size=3)
GLOB_WORD = st.one_of(st.just(ACROSS), st.text("ab*", min_size=1, max_size=4).filter(lambda text: ACROSS not in text))


def joined(word: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pieces = st.lists(st.tuples(SEPARATOR, word), min_size=1, max_size=5)
    return pieces.map(lambda found: "".join(separator + text for separator, text in found)[1:])


@settings(max_examples=300)
@given(st.lists(joined(GLOB_WORD), min_size=1, max_size=8), joined(WORD))
def test_the_index_finds_what_trying_everything_finds(several: list[str], kind: str):
    """Each glob that means the type, once."""
    expected = [place for place, glob in enumerate(several) if naive(segments(glob), segments(kind))]
    index = GlobIndex([(checked(glob), place) for place, glob in enumerate(several)])
    assert expected == sorted(index.find(kind))


@settings(max_examples=200)
@given(st.text("ab*", max_size=6), st.text("ab", max_size=6))
def test_two_pointers_find_what_trying_everything_finds(glob: str, text: str):
    """Within a segment."""
    assert naive_fits(glob, text) == fits(glob, text)


# --- what it costs --------------------------------------------------------------------------------------------------


class Counts:
    """How often something is tried."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fits = self.places = 0
        fit, following = globs.fits, globs._Node.following

        def counted_fit(glob: str, text: str) -> bool:
            self.fits += 1
            return fit(glob, text)

        def counted_following(node: globs._Node[int], segment: Segment, *, first: bool):
            self.places += 1
            return following(node, segment, first=first)

        monkeypatch.setattr(globs, "fits", counted_fit)
        monkeypatch.setattr(globs._Node, "following", counted_following)


@pytest.mark.parametrize(
    "pattern",
    ["shop{}.changed", "shop{}.*", "shop.item{}-*", "shop.*-item{}", "**.item{}", "shop.**.item{}", "*.item{}.**"],
)
def test_ten_thousand_globs_are_not_ten_thousand_tests(pattern: str, monkeypatch: pytest.MonkeyPatch):
    """Whatever they look like, only few places of the tree are visited for a type."""
    index = GlobIndex([(pattern.format(number), number) for number in range(10_000)])
    counts = Counts(monkeypatch)
    kind = pattern.format(7777).replace("**", "x.y").replace("*", "x")
    assert [7777] == list(index.find(kind))
    assert counts.places <= 20
    assert counts.fits <= 20


def test_a_hostile_glob_stays_cheap(monkeypatch: pytest.MonkeyPatch):
    """Each place of the tree is visited once for each segment, however many stars there are."""
    glob = checked(".".join([ACROSS, "*a*"] * (LONGEST // 7)))
    counts = Counts(monkeypatch)
    assert not matches(glob, ".".join("b" * (LONGEST // 2)))
    assert counts.places <= len(segments(glob)) * 2 * LONGEST


def test_a_hostile_segment_stays_cheap():
    """A regular expression would take for ever: the two pointers look at each letter at most once for each star."""
    assert not fits("a*" * 90 + "b", "a" * 200)


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("glob", "said"),
    [
        ("", "1 to 200 printable characters"),
        ("a" * 201, "1 to 200 printable characters"),
        ("price changed", "no spaces"),
        ("price.\n", "printable"),
        ("price..changed", "empty segment; write price.* or price.**"),
        ("price.", "empty segment"),
        ("price.**x", "** stands for whole segments; write * inside of one"),
        ("***", "** stands for whole segments"),
        (None, "must be text, like 'price.*'"),
    ],
)
def test_what_no_glob_can_be(glob: object, said: str):
    """Says what to write."""
    with pytest.raises(ConfigError) as refused:
        checked(glob)
    assert said in str(refused.value)
