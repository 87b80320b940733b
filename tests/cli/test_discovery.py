"""Finding the App that `module:attr` names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ostinato import App, ConfigError
from ostinato.cli.discovery import find_app

Module = Callable[[str, str], None]

GOOD = 'from ostinato import App\napp = App("sqlite:///radio.db")\n'


def test_the_current_folder_is_on_the_path(module: Module):
    """A module in the current folder is found."""
    module("jukebox", GOOD)
    assert isinstance(find_app("jukebox:app"), App)


def test_a_module_alone_means_its_app(module: Module):
    """`jukebox` is `jukebox:app`."""
    module("jukebox", GOOD)
    assert find_app("jukebox") is find_app("jukebox:app")


def test_an_attribute_may_be_deep(module: Module):
    """`module:holder.app` walks down."""
    module("jukebox", GOOD + "class Holder: pass\nHolder.inner = app\n")
    assert find_app("jukebox:Holder.inner") is find_app("jukebox:app")


def test_a_missing_module_is_guessed(module: Module):
    """A mistyped module gets a suggestion from the current folder."""
    module("jukebox", GOOD)
    with pytest.raises(ConfigError, match=r"no module is named 'jukebx' here or on the path; did you mean 'jukebox'\?"):
        find_app("jukebx:app")


def test_a_missing_module_without_a_guess():
    """Without anything similar, it is said where to start."""
    with pytest.raises(ConfigError, match="start in the folder that holds it"):
        find_app("nothing_like_it:app")


def test_a_missing_attribute_is_guessed(module: Module):
    """A mistyped attribute gets the name of an App of the module."""
    module("jukebox", GOOD)
    with pytest.raises(ConfigError, match=r"module 'jukebox' has no 'ap'; did you mean jukebox:app\?"):
        find_app("jukebox:ap")


def test_a_module_without_an_app(module: Module):
    """A module without any App is told what is missing."""
    module("jukebox", "x = 1\n")
    with pytest.raises(ConfigError, match=r"module 'jukebox' has no 'app'; make one there: app = App\(\.\.\.\)"):
        find_app("jukebox:app")


def test_what_is_not_an_app_is_refused(module: Module):
    """An attribute of another kind is named, and the App beside it too."""
    module("jukebox", GOOD + "@app.function\nasync def play() -> None: ...\n")
    with pytest.raises(ConfigError, match=r"jukebox:play is a Function, not an App; did you mean jukebox:app\?"):
        find_app("jukebox:play")


def test_a_file_name_is_refused(module: Module):
    """A file's name is answered with the module's."""
    module("jukebox", GOOD)
    with pytest.raises(ConfigError, match="name the module, like jukebox:app"):
        find_app("jukebox.py:app")
    with pytest.raises(ConfigError, match=r"name the module, like music\.jukebox:app"):
        find_app("./music/jukebox.py")


def test_a_module_that_breaks_shows_where(module: Module, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """An error inside the user's module comes with the user's part of the traceback."""
    module("broken", "import nothing_like_it\n")
    with pytest.raises(ConfigError, match="broken cannot be imported: ModuleNotFoundError"):
        find_app("broken:app")
    shown = capsys.readouterr().err
    assert "broken.py" in shown
    assert "importlib" not in shown


def test_a_declaration_that_cannot_work_is_an_error_of_ours(module: Module):
    """What Ostinato itself refuses while the module is imported passes as it is."""
    module("wrong", 'from ostinato import App\napp = App("mysql://localhost")\n')
    with pytest.raises(ConfigError, match="is not a database URL"):
        find_app("wrong:app")
