"""Finding the App that `module:attr` names, with the current folder on the path."""

from __future__ import annotations

import os
import sys
import traceback
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType

import click

from ..app import App
from ..errors import ConfigError, OstinatoError
from .failure import without_passwords


def find_app(reference: str) -> App:
    """The App at `module:attr`; `module` alone means `module:app`."""
    module_name, _, attribute = reference.partition(":")
    attribute = attribute or "app"
    _refuse_file_names(module_name, attribute)
    module = _imported(module_name)
    found = _attribute(module, attribute)
    if not isinstance(found, App):
        raise ConfigError(f"{module_name}:{attribute} is {_described(found)}, not an App{_where_the_app_is(module)}")
    return found


def _refuse_file_names(module: str, attribute: str) -> None:
    if module.endswith(".py") or "/" in module:
        dotted = module.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigError(f"{module!r} is a file's name; name the module, like {dotted}:{attribute}")
    if not all(part.isidentifier() for part in module.split(".")):
        raise ConfigError(f"{module!r} is not a module's name; name the App like radio:app")


def _imported(name: str) -> ModuleType:
    here = os.getcwd()  # noqa: PTH109
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except OstinatoError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name is not None and _is_part_of(error.name, name):
            raise ConfigError(f"no module is named {error.name!r} here or on the path{_similar_module(name)}") from None
        click.echo(without_passwords(_users_traceback(error)), err=True, nl=False)
        raise ConfigError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error


def _is_part_of(missing: str, name: str) -> bool:
    return name == missing or name.startswith(missing + ".")


def _similar_module(name: str) -> str:
    here = [path.stem for path in Path().iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    close = get_close_matches(name, here, n=1)
    return f"; did you mean {close[0]!r}?" if close else "; start in the folder that holds it"


def _users_traceback(error: Exception) -> str:
    """The traceback from the user's module on, without the machinery of importing."""
    frames = traceback.TracebackException.from_exception(error)
    ours = {__file__, "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>"}
    frames.stack = traceback.StackSummary.from_list(
        [frame for frame in frames.stack if frame.filename not in ours and "/importlib/" not in frame.filename]
    )
    return "".join(frames.format())


def _attribute(module: ModuleType, path: str) -> object:
    found: object = module
    for part in path.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"module {module.__name__!r} has no {path!r}{_similar_attribute(module, path)}")
        found = getattr(found, part)
    return found


def _similar_attribute(module: ModuleType, path: str) -> str:
    close = get_close_matches(path, apps_in(module), n=1) or apps_in(module)
    if close:
        return f"; did you mean {module.__name__}:{close[0]}?"
    return "; make one there: app = App(...)"


def _where_the_app_is(module: ModuleType) -> str:
    apps = apps_in(module)
    return f"; did you mean {module.__name__}:{apps[0]}?" if apps else ""


def apps_in(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if isinstance(value, App)]


def _described(value: object) -> str:
    kind = type(value).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"
