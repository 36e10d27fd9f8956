"""Models; importing this package registers all of them."""

from metatkgr.models.base import Model, available, create, register
from metatkgr.models.baselines import recurrency as _recurrency

__all__ = ["Model", "available", "create", "register"]
_ = _recurrency
