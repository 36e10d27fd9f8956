"""Settings of the models that can be trained on disk."""

from __future__ import annotations

from dataclasses import dataclass

from metatkgr.errors import SettingsError
from metatkgr.models.metatkgr.settings import MetaTKGRSettings
from metatkgr.training.triples_on_disk import DiskTripleSettings

__all__ = ["ON_DISK", "DiskMetaSettings", "DiskRunSettings", "DiskSettings", "disk_settings"]


@dataclass(frozen=True, kw_only=True)
class DiskRunSettings(DiskTripleSettings):
    """Settings of a TransE on disk, from the beginning of its training to its end."""

    epochs: int = 10
    """Passes over the facts that may be learned from."""
    questions: int = 256
    """Of meta-validation, asked after each epoch."""
    checkpoint_blocks: int = 64
    """Blocks between two checkpoints; there is one after each epoch besides."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least_one(self, "epochs", "questions", "checkpoint_blocks")


@dataclass(frozen=True, kw_only=True)
class DiskMetaSettings(MetaTKGRSettings):
    """Settings of a MetaTKGR on disk: those in memory, and how its tables are learned there."""

    dimension: int = 64
    """d, the length of every vector."""
    batch_size: int = 32
    """Tasks in a batch; what a step needs of memory grows with it, 10 MB and more for each."""
    translation_epochs: int = 10
    """Passes over the facts of the TransE that fills the tables."""
    translation_rate: float = 0.1
    """Learning rate of that stage, of Adagrad."""
    translation_batch: int = 1024
    """Facts in a batch of that stage."""
    translation_negatives: int = 256
    """Entities in its softmax besides the answer, drawn anew for each batch."""
    block: int = 1 << 18
    """Facts of that stage read at once."""
    checkpoint_blocks: int = 64
    """Blocks between two checkpoints of that stage; later, there is one after each epoch."""
    interval_tasks: int = 8192
    """Tasks that an epoch of meta-training draws from each interval; 0: all there are."""
    questions: int = 256
    """Of meta-validation, asked after each epoch of meta-training, at most."""
    moments: int = 16
    """At so many steps: all candidates are encoded anew for each."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least_one(self, "translation_epochs", "questions", "moments")
        if self.interval_tasks < 0:
            raise SettingsError(f"interval_tasks is {self.interval_tasks}; give 0 or more")
        stay = "on disk the tables stay as the translation left them"
        for name, wanted, why in (
            ("learn_tables", False, stay),
            ("background_epochs", 0, f"that stage moves the tables, and {stay}"),
            ("candidates", "shared", "on disk they are encoded once for all who ask at a step"),
        ):
            if getattr(self, name) != wanted:
                raise SettingsError(
                    f"{name} is {getattr(self, name)!r}; leave it at {wanted!r}: {why}"
                )
        _ = self.translation

    @property
    def translation(self) -> DiskRunSettings:
        """The settings of the stage that fills the tables."""
        return DiskRunSettings(
            dimension=self.dimension,
            batch_size=self.translation_batch,
            negatives=self.translation_negatives,
            learning_rate=self.translation_rate,
            block=self.block,
            epochs=self.translation_epochs,
            checkpoint_blocks=self.checkpoint_blocks,
        )


DiskSettings = DiskRunSettings | DiskMetaSettings

ON_DISK: dict[str, type[DiskRunSettings] | type[DiskMetaSettings]] = {
    "metatkgr": DiskMetaSettings,
    "transe": DiskRunSettings,
}
"""The models that can be trained on disk, and their settings."""


def disk_settings(model: str) -> type[DiskRunSettings] | type[DiskMetaSettings]:
    """The type of a model's settings.

    Raises:
        SettingsError: it cannot be trained on disk.
    """
    if model not in ON_DISK:
        raise SettingsError(
            f"on disk {' and '.join(ON_DISK)} can be trained, not {model}: choose one of them with "
            "--model, or leave out --on-disk, which takes the whole graph into memory"
        )
    return ON_DISK[model]


def _at_least_one(settings: object, *names: str) -> None:
    for name in names:
        if getattr(settings, name) < 1:
            raise SettingsError(f"{name} must be at least 1, not {getattr(settings, name)}")
