"""Documents: YAML ↔ model, with every mistake of a file at its line and column. The only room that knows YAML."""

from __future__ import annotations

from autotuner.documents.finding import find, names, scaffold, scaffold_files, schema_text
from autotuner.documents.reading import check_file, load_host, load_recommendation, load_space, load_workload, parse_document
from autotuner.documents.schemas import MODELS, schema, schema_file
from autotuner.documents.writing import dump, write, write_text

__all__ = [
    "MODELS",
    "check_file",
    "dump",
    "find",
    "load_host",
    "load_recommendation",
    "load_space",
    "load_workload",
    "names",
    "parse_document",
    "scaffold",
    "scaffold_files",
    "schema",
    "schema_file",
    "schema_text",
    "write",
    "write_text",
]
