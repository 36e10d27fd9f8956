"""Models; importing this package registers all of them, and those that other packages offer.

Every module of this package is imported, so that a new model is one new file. Another package
offers its own by an entry point of the group ``metatkgr.models`` that names the module::

    [project.entry-points."metatkgr.models"]
    frequency = "mypackage.frequency"

or is named by ``--plugin``: :func:`load_plugins`.
"""

import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path

from metatkgr.errors import SettingsError
from metatkgr.models.base import Model, available, create, register

__all__ = ["DEFAULT_MODEL", "Model", "available", "create", "load_plugins", "register"]

DEFAULT_MODEL = "evidence"
"""The model of the product where none is named."""

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
for _offered in entry_points(group="metatkgr.models"):
    _offered.load()

_PLUGINS = "METATKGR_PLUGINS"
"""Names of plugins, for the processes that this one starts."""


def load_plugins(names: Iterable[str]) -> None:
    """Import modules that register models; processes that are started later do so too.

    Args:
        names: of modules, as Python imports them, or of ``.py`` files.

    Raises:
        SettingsError: there is no such module, or it cannot be imported.
    """
    known = [name for name in os.environ.get(_PLUGINS, "").split(os.pathsep) if name]
    for given in names:
        name = str(Path(given).absolute()) if given.endswith(".py") else given
        try:
            _load(name)
        except Exception as error:
            raise SettingsError(f"the plugin {given} cannot be imported: {error}") from error
        known += [name] if name not in known else []
    os.environ[_PLUGINS] = os.pathsep.join(known)


def _load(name: str) -> None:
    path = Path(name)
    module = path.stem if name.endswith(".py") else name
    if module in sys.modules:
        return
    if module == name:
        importlib.import_module(name)
        return
    about = importlib.util.spec_from_file_location(module, path)
    assert about is not None
    assert about.loader is not None
    # Dataclasses look their module up by its name.
    made = sys.modules[module] = importlib.util.module_from_spec(about)
    try:
        about.loader.exec_module(made)
    except BaseException:
        del sys.modules[module]
        raise


load_plugins(os.environ.get(_PLUGINS, "").split(os.pathsep) if os.environ.get(_PLUGINS) else ())
