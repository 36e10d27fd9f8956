"""The grid of the paper's experiments: which cells each table and figure is made from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from metatkgr.errors import UnknownNameError
from metatkgr.experiments.cells import (
    BASELINES,
    EVIDENCE_PARTS,
    RULES,
    VARIANTS,
    WALK_PARTS,
    Cell,
)
from metatkgr.models import available
from metatkgr.models.base import TrainableModel

__all__ = [
    "DATASETS",
    "EXPERIMENTS",
    "Choice",
    "cells_for",
    "grid",
    "quick_choice",
    "settings_of",
]

DATASETS = ("YAGO", "WIKI", "ICEWS18")
"""In the order of the paper's columns."""
CROSS_TRAIN, CROSS_TEST = (1, 3), ("1", "3", "5", "random")
CROSS_DATASET = "YAGO"
"""The paper's cross-shot table is on this one."""

_FEW_SEEDS, _MANY_SEEDS = 3, 5
_SHOTS_ORDER = (3, 1, 2)


@dataclass(frozen=True)
class Choice:
    """What a user wants of the grid; None leaves it to the experiment."""

    datasets: tuple[str, ...] = DATASETS
    models: tuple[str, ...] | None = None
    shots: tuple[int, ...] | None = None
    visibilities: tuple[str, ...] | None = None
    seeds: int | None = None
    """Of every learned model; None: 5 for MetaTKGR, the evidence model and the best baselines, 3
    for the others."""
    best: tuple[str, ...] = ()
    """The best baselines, once known: they get more seeds and the other visibilities."""
    presets: tuple[str, ...] | None = None
    """Of learned models; None: 'default', and for MetaTKGR 'paper' too."""
    settings: tuple[tuple[str, str], ...] = ()
    """Overrides for every learned model."""
    quick: bool = False
    """Tiny trainings."""

    def seeds_of(self, model: str) -> range:
        """The seeds to run a model with; a rule has no randomness."""
        if not _is_learned(model):
            return range(1)
        many = model in ("metatkgr", "evidence") or model in self.best
        return range(self.seeds or (_MANY_SEEDS if many else _FEW_SEEDS))

    def wants(self, model: str) -> bool:
        """Whether a model is chosen; by default every registered one that can be used."""
        if self.models is not None:
            return model in self.models
        return not available()[model].needs_law

    def shots_or(self, usual: Sequence[int]) -> list[int]:
        """The chosen numbers of shots among the usual ones of an experiment."""
        wanted = [k for k in usual if self.shots is None or k in self.shots]
        return sorted(wanted, key=_shots_order)


def quick_choice(choice: Choice) -> Choice:
    """The whole grid in small: the simulated world, few models, two seeds, tiny trainings."""
    models = choice.models or ("recurrency", "paths", "transe", "metatkgr")
    return Choice(
        datasets=("world:3000:1",),
        models=models,
        shots=choice.shots or (1, 3),
        visibilities=choice.visibilities or ("entity-split", "frozen"),
        seeds=choice.seeds or 2,
        best=("transe",),
        presets=choice.presets,
        settings=choice.settings,
        quick=True,
    )


def _shots_order(shots: int) -> tuple[int, int]:
    """The paper's main table first; numbers that the paper has not come last."""
    return _SHOTS_ORDER.index(shots) if shots in _SHOTS_ORDER else len(_SHOTS_ORDER), shots


def _is_learned(model: str) -> bool:
    return issubclass(available()[model], TrainableModel)


def _models(choice: Choice) -> list[str]:
    """Chosen models: rules first, then MetaTKGR, then the others in the paper's order."""
    known = available()
    for name in choice.models or ():
        if name not in known:
            raise UnknownNameError("model", name, known)
    order = [*RULES, "metatkgr", *BASELINES]
    order += [name for name in known if name not in order]
    return [name for name in order if name in known and choice.wants(name)]


def grid(
    choice: Choice,
    models: Iterable[str],
    shots: Sequence[int],
    *,
    visibilities: Iterable[str] = ("entity-split",),
    paper: bool = True,
) -> list[Cell]:
    """Every combination; MetaTKGR also with its preset ``paper``, where that is wanted."""
    cells = []
    for model in models:
        learned = _is_learned(model)
        for preset in _presets(choice, model, paper):
            cells += [
                Cell(
                    dataset,
                    model,
                    k,
                    seed,
                    preset,
                    choice.settings if learned else (),
                    visibility,
                )
                for visibility in visibilities
                if choice.visibilities is None or visibility in choice.visibilities
                for k in choice.shots_or(shots)
                for seed in choice.seeds_of(model)
                for dataset in choice.datasets
            ]
    return cells


def _presets(choice: Choice, model: str, paper: bool) -> tuple[str, ...]:
    if not _is_learned(model):
        return ("default",)
    if choice.presets is not None:
        return choice.presets
    return ("default", "paper") if paper and model == "metatkgr" else ("default",)


def _shots(*shots: int) -> Callable[[Choice], list[Cell]]:
    return lambda choice: grid(choice, _models(choice), shots)


def _cross_shot(choice: Choice) -> list[Cell]:
    models = [model for model in _models(choice) if model in (*RULES, "metatkgr")]
    return [
        replace(cell, test_shots=test)
        for cell in _only((CROSS_DATASET,), CROSS_TRAIN, models)(choice)
        if cell.seed < _FEW_SEEDS and cell.preset == "default"
        for test in CROSS_TEST
        # A rule learns nothing: only the test counts.
        if _is_learned(cell.model) or cell.shots == CROSS_TRAIN[-1]
    ]


def _visibility(choice: Choice) -> list[Cell]:
    wanted = {*RULES, "metatkgr", *choice.best} | set(choice.models or ())
    models = [model for model in _models(choice) if model in wanted]
    others = ("frozen", "streaming")
    return grid(choice, [m for m in models if m in RULES], (1, 2, 3), visibilities=others) + grid(
        choice,
        [m for m in models if m not in RULES],
        (3,) if choice.shots is None else choice.shots,
        visibilities=others,
        paper=False,
    )


def _ablations(
    model: str,
    parts: Iterable[tuple[tuple[str, str], ...]],
    shots: Sequence[int] = (3,),
    preset: str = "default",
) -> Callable[[Choice], list[Cell]]:
    """A model in full, and with the settings of each part changed; fewer seeds of the latter."""

    def cells(choice: Choice) -> list[Cell]:
        if model not in _models(choice):
            return []
        if preset != "default":
            choice = replace(choice, presets=(preset,))
        base = grid(choice, [model], shots, paper=False)
        changed = []
        for part in parts:
            settings = tuple(sorted((dict(choice.settings) | dict(part)).items()))
            changed += [replace(cell, settings=settings) for cell in base if cell.seed < _FEW_SEEDS]
        return base + changed

    return cells


_VARIANTS = [(("variant", variant),) for variant in VARIANTS]
_PARTS = [(part,) for part in EVIDENCE_PARTS]


def _only(
    names: Iterable[str], shots: Sequence[int], models: Sequence[str] | None = None
) -> Callable[[Choice], list[Cell]]:
    """The cells of some datasets; of all chosen ones, where the usual ones are not among them."""
    wanted = set(names)

    def cells(choice: Choice) -> list[Cell]:
        some = grid(choice, _models(choice) if models is None else models, shots)
        usual = wanted & set(choice.datasets)
        return [cell for cell in some if not usual or cell.dataset in usual]

    return cells


EXPERIMENTS: dict[str, Callable[[Choice], list[Cell]]] = {
    "3-shot": _shots(3),
    "1-shot": _shots(1),
    "2-shot": _shots(2),
    "detailed": _shots(1, 2, 3),
    "ablations": _ablations("metatkgr", _VARIANTS, _SHOTS_ORDER),
    "evidence-ablations": _ablations("evidence", _PARTS, _SHOTS_ORDER),
    "walk-ablations": _ablations("metatkgr", WALK_PARTS, _SHOTS_ORDER, "walks"),
    "cross-shot": _cross_shot,
    "visibility": _visibility,
    "over-time": _only(("YAGO", "ICEWS18"), (3,)),
    "training-time": _only(("YAGO",), (3,)),
    "bound": _ablations("metatkgr", []),
    "datasets": lambda choice: [],
}
"""Tables and figures by name, and the cells each needs."""


def cells_for(experiments: Iterable[str], choice: Choice) -> list[Cell]:
    """The cells of some experiments, each training once, cheap and important ones first.

    First three seeds come before further ones; inside that 3-shot, then 1 and 2; ablations; other
    visibilities. Datasets alternate, so that workers are not all on the largest.
    """
    names = list(experiments) or list(EXPERIMENTS)
    for name in names:
        if name not in EXPERIMENTS:
            raise UnknownNameError("table or figure", name, EXPERIMENTS)
    by_name: dict[str, Cell] = {}
    for name in names:
        for cell in EXPERIMENTS[name](choice):
            by_name.setdefault(cell.name, cell)
    cells = list(by_name.values())
    if choice.quick:
        cells = [replace(cell, tiny=_is_learned(cell.model)) for cell in cells if _is_quick(cell)]
    position = {model: number for number, model in enumerate(_models(choice))}

    def importance(cell: Cell) -> tuple[object, ...]:
        return (
            cell.seed >= _FEW_SEEDS,
            cell.visibility != "entity-split",
            cell.test_shots != str(cell.shots),
            bool(cell.row.variant),
            _shots_order(cell.shots),
            cell.preset != "default",
            cell.seed,
            position[cell.model],
            choice.datasets.index(cell.dataset),
        )

    return sorted(cells, key=importance)


def _is_quick(cell: Cell) -> bool:
    """Whether a cell is needed for the quick pipeline: every kind of cell once or twice."""
    plain = cell.preset == "default" and not bool(cell.row.variant)
    if cell.test_shots != str(cell.shots):
        return (cell.shots, cell.test_shots) == (3, "random") and cell.seed == 0
    if cell.visibility != "entity-split":
        return cell.shots == 3 and cell.seed == 0
    return plain or (cell.shots == 3 and cell.seed == 0)


_TINY = {
    "dimension": "16",
    "epochs": "2",
    "translation_epochs": "2",
    "background_epochs": "0",
    "queries_per_task": "4",
}
"""Settings of a tiny training, as far as a model has them."""


def settings_of(cell: Cell) -> dict[str, str]:
    """The settings to create the cell's model with, on top of its preset."""
    if not cell.tiny:
        return dict(cell.settings)
    known = available()[cell.model].settings_type.__dataclass_fields__
    return {key: value for key, value in _TINY.items() if key in known} | dict(cell.settings)
