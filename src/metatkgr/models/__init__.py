"""Models; importing this package registers all of them, and those that other packages offer.

Every module of this package is imported, so that a new model is one new file. Another package
offers its own by an entry point of the group ``metatkgr.models`` that names the module::

    [project.entry-points."metatkgr.models"]
    frequency = "mypackage.frequency"

or is named by ``--plugin``: :func:`load_plugins`.
"""

import importlib
import pkgutil
from importlib.metadata import entry_points

from metatkgr.models.base import Model
from metatkgr.models.registry import (
    DEFAULT_MODEL,
    available,
    create,
    load_plugins,
    register,
)

__all__ = ["DEFAULT_MODEL", "Model", "available", "create", "load_plugins", "register"]

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
for _offered in entry_points(group="metatkgr.models"):
    _offered.load()
load_plugins()
