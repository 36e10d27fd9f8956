"""Graphs larger than memory: columns on disk, sorting on disk, and the folder that opens as facts.

``columns`` reads and writes files of columns, ``external_sort`` orders rows on disk, ``chunks``
reads a file piece by piece, ``names`` numbers names in bounded memory, ``ingest`` puts these
together, ``store`` opens the result.
"""
