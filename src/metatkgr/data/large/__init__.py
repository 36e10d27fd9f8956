"""Graphs larger than memory: columns on disk, sorting on disk, and the folder that opens as facts.

``columns`` reads and writes files of columns, ``external_sort`` orders rows on disk, ``chunks``
reads a file piece by piece, ``names`` numbers names in bounded memory, ``reading`` puts these
together. ``ingest`` makes a folder of what was read, ``append`` adds it to one (``growth``,
``growing_names``), ``manifest`` says what belongs to it, ``store`` opens it.
"""
