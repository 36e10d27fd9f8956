"""Models by name: those that registered themselves, with a preset and settings, on a device.

Another package registers its own by :func:`load_plugins` or an entry point (see ``models``). The
preset 'tuned' holds, for each dataset, what was chosen on meta-validation.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from metatkgr.errors import DataError, SettingsError, UnknownNameError
from metatkgr.files import read_toml, to_toml, write_text
from metatkgr.models.base import Model, TrainableModel
from metatkgr.settings import parse_settings

__all__ = [
    "DEFAULT_MODEL",
    "TUNED",
    "TUNED_FILE",
    "available",
    "choose_device",
    "create",
    "create_for",
    "keep_tuned",
    "load_plugins",
    "register",
    "trainable",
    "tuned_settings",
]

DEFAULT_MODEL = "evidence"
"""The model of the product where none is named."""
TUNED = "tuned"
"""Name of the preset."""
TUNED_FILE = Path(__file__).with_name("tuned.toml")
"""The settings that come with the package."""
_PLUGINS = "METATKGR_PLUGINS"
"""Names of plugins, for the processes that this one starts."""
_REGISTRY: dict[str, type[Model[Any]]] = {}

ModelT = TypeVar("ModelT", bound=type[Model[Any]])


def register(model: ModelT) -> ModelT:
    """Class decorator: make a model known under its ``name``."""
    known = _REGISTRY.get(model.name)
    if known is not None and known.__qualname__ != model.__qualname__:
        raise ValueError(f"two models are called {model.name!r}")
    _REGISTRY[model.name] = model
    return model


def available() -> dict[str, type[Model[Any]]]:
    """All registered models by name."""
    return dict(sorted(_REGISTRY.items()))


def create(
    name: str,
    settings: Mapping[str, Any] | None = None,
    *,
    preset: str = "default",
    device: torch.device | str = "cpu",
) -> Model[Any]:
    """A model by name.

    Args:
        name: of the model.
        settings: by name; they win over the preset's. Values may be text, as from a command line.
        preset: a named set of settings of this model.
        device: where the model computes.
    """
    if name not in _REGISTRY:
        raise UnknownNameError("model", name, _REGISTRY)
    model = _REGISTRY[name]
    if preset not in model.presets:
        raise UnknownNameError(f"preset of {name}", preset, model.presets)
    chosen = {**model.presets[preset], **(settings or {})}
    return model(parse_settings(model.settings_type, chosen), device=device)


def choose_device(name: str) -> str:
    """The device to compute on; 'auto' is a GPU where there is one."""
    if name == "auto":
        # Of several processes each takes a GPU of its own.
        return f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingsError(f"unknown device {name!r}; use cpu, cuda, cuda:N or auto") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingsError(f"{name!r} was asked for, but this machine has no usable GPU; use cpu")
    if device.type not in ("cpu", "cuda"):
        raise SettingsError(f"device {name!r} is not supported; use cpu, cuda, cuda:N or auto")
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        return f"cuda:{os.environ['LOCAL_RANK']}"
    return str(device)


def load_plugins(names: Iterable[str] = ()) -> None:
    """Import modules that register models; processes that are started later do so too.

    Args:
        names: of modules, as Python imports them, or of ``.py`` files; beside those that the
            process that started this one has loaded.

    Raises:
        SettingsError: there is no such module, or it cannot be imported.
    """
    known = [name for name in os.environ.get(_PLUGINS, "").split(os.pathsep) if name]
    for given in (*known, *names):
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


def trainable(
    name: str,
    settings: Mapping[str, Any] | None = None,
    *,
    preset: str = "default",
    dataset: str | None = None,
    device: torch.device | str = "cpu",
) -> TrainableModel[Any]:
    """A model by name that can be trained.

    Args:
        name: of the model.
        settings: by name; they win over the preset's.
        preset: named settings; 'tuned' stands for those chosen for ``dataset``. A preset that is
            there for this dataset too, as 'paper:WIKI', is taken in place of the general one.
        dataset: name of the facts; None: not known yet, then 'tuned' is the default.
        device: where the model computes.
    """
    model = create_for(dataset, name, settings, preset=preset, device=device)
    if not isinstance(model, TrainableModel):
        raise SettingsError(
            f"{name} needs no training; use it at once: metatkgr evaluate DATA --model {name}"
        )
    return model


def create_for(
    dataset: str | None,
    name: str,
    settings: Mapping[str, Any] | None = None,
    *,
    preset: str = "default",
    device: torch.device | str = "cpu",
) -> Model[Any]:
    """A model by name, with what its preset says for a dataset; arguments as above."""
    chosen = dict(settings or {})
    if preset == TUNED:
        preset = "default"
        chosen = (tuned_settings(name, dataset) if dataset is not None else {}) | chosen
    model = available().get(name)
    if model is not None and f"{preset}:{dataset}" in model.presets:
        preset = f"{preset}:{dataset}"
    return create(name, chosen, preset=preset, device=device)


def tuned_settings(model: str, dataset: str, path: Path = TUNED_FILE) -> dict[str, Any]:
    """The settings that were chosen for a model on a dataset.

    Raises:
        SettingsError: none were chosen yet.
    """
    known = _read_tuned(path).get(model, {})
    if dataset not in known:
        chosen = ", ".join(known) if known else "no dataset yet"
        raise SettingsError(
            f"no settings of {model} were tuned on {dataset} (only on: {chosen}); leave out "
            f"--preset tuned, or choose some: metatkgr tune {dataset} --model {model} --out {path}"
        )
    return dict(known[dataset])


def keep_tuned(path: Path, model: str, dataset: str, settings: Mapping[str, Any]) -> None:
    """Put settings into a file beside what it holds for other models and datasets.

    The comment that the file begins with is kept.
    """
    content = _read_tuned(path) if path.exists() else {}
    content.setdefault(model, {})[dataset] = dict(settings)
    ordered = {
        name: {data: dict(sorted(values.items())) for data, values in sorted(known.items())}
        for name, known in sorted(content.items())
    }
    head = "".join(f"{line}\n" for line in _comment(path))
    write_text(path, (head + "\n" if head else "") + to_toml(ordered))


def _read_tuned(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    content = read_toml(path)
    tables = [data for known in content.values() for data in _values(path, known)]
    if not all(isinstance(table, dict) for table in tables):
        raise DataError(f"{path} is not made of tables [MODEL.DATASET] with settings")
    return content


def _values(path: Path, known: Any) -> list[Any]:
    if not isinstance(known, dict):
        raise DataError(f"{path} is not made of tables [MODEL.DATASET] with settings")
    return list(known.values())


def _comment(path: Path) -> list[str]:
    """The lines at the head of a file that are comments."""
    lines: list[str] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            if not line.startswith("#"):
                break
            lines.append(line)
    return lines
