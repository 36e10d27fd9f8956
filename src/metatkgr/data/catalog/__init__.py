"""The catalogue of published datasets: YAGO, WIKI, ICEWS18 and ICEWS14.

``datasets`` names their files and sums, ``loading`` finds and reads them, ``fetch`` and
``download`` get what is absent, ``source_formats`` converts what their public homes offer.
"""

from metatkgr.data.catalog.datasets import CatalogEntry
from metatkgr.data.catalog.loading import (
    cache_folder,
    entries,
    entry,
    fetch_dataset,
    load,
    load_folder,
    locate,
    verify,
)

__all__ = [
    "CatalogEntry",
    "cache_folder",
    "entries",
    "entry",
    "fetch_dataset",
    "load",
    "load_folder",
    "locate",
    "verify",
]
