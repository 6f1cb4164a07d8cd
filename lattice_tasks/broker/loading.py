"""Importing the module that declares somebody's tasks."""

import importlib
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from lattice_tasks.errors import AppImportFailed

__all__ = ["load_app"]


def load_app(app: str) -> tuple[ModuleType, object | None]:
    """The module of an app and the attribute that was named, if one was.

    The current folder, or that of a file, comes first on the import path.

    Args:
        app: `module`, `package.module`, `module:attribute`, or a file such as `tasks.py`.

    Raises:
        AppImportFailed: in one line, with the place in the app where it failed.
    """
    name, _, attribute = app.partition(":")
    folder = Path.cwd()
    if name.endswith(".py") or os.sep in name:
        file = Path(name)
        if not file.is_file():
            raise AppImportFailed(f"app {app!r}: there is no file {file} in {folder}")
        folder, name = file.resolve().parent, file.stem
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a script that calls sys.exit, say
        raise AppImportFailed(f"app {app!r} cannot be imported from {folder}: {_told(error)}") from error
    if not attribute:
        return module, None
    if not hasattr(module, attribute):
        raise AppImportFailed(f"app {app!r}: module {name} has no attribute {attribute!r}")
    return module, getattr(module, attribute)


def _told(error: BaseException) -> str:
    """The error, and the last place outside the import machinery where it passed."""
    text = f"{type(error).__name__}: {error}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text
