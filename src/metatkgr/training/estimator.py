"""From facts to a trained model, from Python and from the command line alike.

Constructors store, ``fit`` learns, learned names end in an underscore.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from metatkgr import __version__
from metatkgr.data.facts import Facts
from metatkgr.data.periods import Shots
from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries, Tasks
from metatkgr.data.visibility import Visibility
from metatkgr.errors import MetaTKGRError, SettingsError
from metatkgr.evaluation.evaluator import Evaluation, evaluate
from metatkgr.files import write_text
from metatkgr.models.base import TrainableModel
from metatkgr.models.common.listed import Scores
from metatkgr.models.registry import choose_device, trainable
from metatkgr.training.cluster import connected
from metatkgr.training.distributed import current_part, evaluate_together, processes
from metatkgr.training.loop import choose_precision, train
from metatkgr.training.runs import (
    RunConfig,
    check_facts,
    check_folder,
    is_run,
    load_config,
    only_writer,
    save_graph,
    save_run,
)

__all__ = ["Estimator", "MetaTKGR", "Progress", "configure", "learn"]

Progress = Callable[[dict[str, Any]], object]
"""Is given each line of the trace."""


def configure(
    model: TrainableModel[Any],
    facts: Facts,
    *,
    shots: int | str = 3,
    test_shots: int | str | None = None,
    visibility: str = "entity-split",
    seed: int = 0,
    preset: str = "default",
    precision: str = "auto",
) -> RunConfig:
    """All that a training follows from, to be stored with the run."""
    trained = Shots.parse(shots).label
    later = trained if test_shots is None else Shots.parse(test_shots).label
    return RunConfig(
        dataset=facts.name,
        model=model.name,
        shots=trained,
        visibility=visibility,
        seed=seed,
        version=__version__,
        preset=preset,
        precision=choose_precision(precision, model.device),
        test_shots="" if later == trained else later,
        settings=asdict(model.settings),
    )


def learn(
    model: TrainableModel[Any],
    facts: Facts,
    config: RunConfig,
    *,
    folder: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    problem: Problem | None = None,
) -> list[dict[str, Any]]:
    """Train a model on facts; weights are selected by MRR on meta-validation and nothing else.

    Args:
        model: gets new weights, in place.
        facts: the whole graph; the queries of meta-validation and meta-test are not learned from.
        config: from :func:`configure`.
        folder: becomes a run in the making, which can be resumed; None writes nothing.
        resume: go on from the checkpoint in ``folder``.
        progress: called with each line of the trace.
        problem: that of ``facts`` and ``config``, when it is at hand already.

    Returns:
        The lines of the trace.
    """
    with ExitStack() as stack:
        if folder is not None and current_part().number == 0:
            check_folder(folder, resume=resume)
            stack.enter_context(only_writer(folder))
            if is_run(folder):
                if load_config(folder) != config:
                    raise SettingsError(
                        f"{folder} was begun with other settings; --resume must repeat them"
                    )
                check_facts(folder, facts)
            save_graph(folder, config, facts)
        if problem is None:
            problem = Problem.of(
                facts,
                shots=config.shots,
                test_shots=config.test_shots or None,
                visibility=config.visibility,
                seed=config.seed,
            )
        protocol = problem

        def validate(candidate: TrainableModel[Any]) -> float:
            evaluation = evaluate_together(candidate, protocol.validation)
            return evaluation.summary(protocol.filter, resamples=0).mrr or 0.0

        return train(
            model,
            problem,
            seed=config.seed,
            validate=validate,
            folder=folder,
            resume=resume,
            progress=progress,
            precision=config.precision,
        )


def _check_shared_out(model: TrainableModel[Any]) -> None:
    if not model.shares_out:
        how = f"train {model.name} by several processes: torchrun -m metatkgr train …"
        raise SettingsError(f"a cluster reads the examples of evidence only; {how}")


class Estimator:
    """Any model with weights, from its name to forecasts.

    >>> transe = Estimator("transe", shots=1, epochs=5).fit(facts)  # doctest: +SKIP
    >>> transe.evaluate().summary().mrr  # doctest: +SKIP

    Args:
        model: its name.
        shots: K, how many first facts of a new entity are known; 'random' (1-5) or a range as
            '2-4': drawn for each entity.
        test_shots: K of the meta-validation and meta-test entities, where it is another one.
        visibility: which facts are public.
        seed: of all randomness.
        preset: named settings of the model; 'tuned' for those chosen for the dataset.
        device: 'cpu', 'cuda', 'cuda:N' or 'auto', a GPU where there is one.
        precision: of the losses: 'auto', 'float32', 'tf32' or 'bfloat16'.
        settings: of the model, by name; they win over the preset's.

    Attributes:
        model_: the trained model.
        facts_: what it was fitted to.
        config_: all that the training followed from.
        trace_: one dictionary for each epoch.
        metrics_: the evaluation on meta-validation, where ``fit`` was given a folder.
    """

    def __init__(
        self,
        model: str,
        *,
        shots: int | str = 3,
        test_shots: int | str | None = None,
        visibility: str = "entity-split",
        seed: int = 0,
        preset: str = "default",
        device: str = "auto",
        precision: str = "auto",
        **settings: Any,
    ) -> None:
        self.model, self.settings = model, settings
        self.shots, self.test_shots, self.visibility = shots, test_shots, visibility
        self.seed, self.preset = seed, preset
        self.device, self.precision = device, precision

    def __repr__(self) -> str:
        given = {"shots": self.shots, "visibility": self.visibility, "seed": self.seed}
        values = ", ".join(f"{key}={value!r}" for key, value in (given | self.settings).items())
        return f"{type(self).__name__}({values})"

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """What the constructor was given, by name; for ``sklearn.clone`` and the like."""
        given = {"model": self.model, "shots": self.shots, "test_shots": self.test_shots}
        given |= {"visibility": self.visibility, "seed": self.seed, "preset": self.preset}
        return given | {"device": self.device, "precision": self.precision} | self.settings

    def set_params(self, **changes: Any) -> Self:
        """Change what the constructor was given; what was learned stays as it is."""
        own = self.get_params().keys() - self.settings.keys()
        for name, value in changes.items():
            if name in own:
                setattr(self, name, value)
            else:
                self.settings = self.settings | {name: value}
        return self

    def fit(
        self,
        facts: Facts,
        *,
        folder: str | Path | None = None,
        resume: bool = False,
        progress: Progress | None = None,
        evaluating: Callable[[int, int], object] | None = None,
        cluster: str | None = None,
        workers: int = 1,
        problem: Problem | None = None,
    ) -> Self:
        """Learn from facts; weights are selected on meta-validation, meta-test is not looked at.

        Args:
            facts: the whole graph.
            folder: becomes a run, with checkpoints while the training goes on; see also ``save``.
            resume: go on with the run in ``folder``.
            progress: called with one dictionary for each epoch.
            evaluating: called while what goes into ``folder`` is evaluated, with the queries done
                since the last call and the number of all.
            cluster, workers: as in ``training.cluster.connected``; reads the examples of evidence.
            problem: that of ``facts``, when it is at hand already, or one of another protocol.
        """
        model = self._new_model(facts.name)
        config = configure(
            model,
            facts,
            shots=self.shots,
            test_shots=self.test_shots,
            visibility=self.visibility,
            seed=self.seed,
            preset=self.preset,
            precision=self.precision,
        )
        path = None if folder is None else Path(folder)
        with ExitStack() as stack:
            part = stack.enter_context(processes(model.device))
            if cluster is not None:
                _check_shared_out(model)
                nodes = connected(cluster, workers=workers, device=model.device.type)
                model.share_out = stack.enter_context(nodes).map
            lines = learn(
                model,
                facts,
                config,
                folder=path,
                resume=resume,
                progress=progress,
                problem=problem,
            )
        model.share_out = map
        self.model_, self.facts_, self.config_, self.trace_ = model, facts, config, lines
        self._prepared: str | None = None
        if path is not None and part.number == 0:
            self.metrics_ = save_run(path, model, facts, config, lines, progress=evaluating)
        return self

    def check(self, cluster: str | None = None) -> None:
        """Raise what ``fit`` would about the arguments, before a large file is read for it."""
        for shots in (self.shots, self.test_shots):
            if shots is not None:
                Shots.parse(shots)
        Visibility.parse(self.visibility)
        choose_precision(self.precision)
        model = self._new_model(None)
        if cluster is not None:
            _check_shared_out(model)

    def _new_model(self, dataset: str | None) -> TrainableModel[Any]:
        return trainable(
            self.model,
            self.settings,
            preset=self.preset,
            dataset=dataset,
            device=choose_device(self.device),
        )

    def tasks(
        self,
        split: str = "meta-test",
        *,
        shots: int | str | None = None,
        visibility: str | None = None,
    ) -> Tasks:
        """The few-shot tasks of a split of the facts; as in training, unless said otherwise."""
        self._check_fitted()
        config = self.config_
        return Tasks.build(
            self.facts_,
            shots=(config.test_shots or config.shots) if shots is None else shots,
            visibility=visibility or config.visibility,
            split=split,
            seed=config.seed,
        )

    def evaluate(
        self,
        split: str = "meta-test",
        *,
        shots: int | str | None = None,
        visibility: str | None = None,
    ) -> Evaluation:
        """Rank all queries of a split; with other ``shots`` than in training see the guide."""
        tasks = self.tasks(split, shots=shots, visibility=visibility)
        self._prepared = None
        return evaluate(self.model_, tasks)

    def score(self, queries: Queries, *, split: str = "meta-test") -> Scores:
        """Score every entity as the answer to queries about the new entities of a split.

        Returns:
            (Q, E) scores on the model's device, higher is likelier; of a model that reads only
            what is near a query, :class:`ListedScores`.
        """
        self._check_fitted()
        if self._prepared != split:
            tasks = self.tasks(split)
            self.model_.prepare(tasks.visible).adapt(tasks.supports)
            self._prepared = split
        return self.model_.score(queries)

    def save(self, folder: str | Path) -> Path:
        """Write a run, as ``metatkgr train`` does; ``metatkgr evaluate`` takes its folder."""
        self._check_fitted()
        path = Path(folder)
        check_folder(path, resume=False)
        save_graph(path, self.config_, self.facts_)
        lines = "".join(json.dumps(line) + "\n" for line in self.trace_)
        write_text(path / "trace.jsonl", lines)
        self._prepared = None
        self.metrics_ = save_run(path, self.model_, self.facts_, self.config_, self.trace_)
        return path

    def _check_fitted(self) -> None:
        if not hasattr(self, "model_"):
            raise MetaTKGRError(f"{self!r} has learned nothing yet: call fit(facts) first")


class MetaTKGR(Estimator):
    """MetaTKGR: learns how to learn about new entities from their first few facts.

    >>> model = MetaTKGR(shots=3, epochs=10).fit(facts)  # doctest: +SKIP

    Takes what :class:`Estimator` takes, but for the model's name.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__("metatkgr", **arguments)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """What the constructor was given, by name."""
        return {name: value for name, value in super().get_params(deep).items() if name != "model"}
