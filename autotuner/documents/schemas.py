"""The kinds of document and their JSON Schemas."""

from __future__ import annotations

import functools
from typing import Any

from autotuner.errors import UsageError
from autotuner.model.document import Document
from autotuner.model.host import Host
from autotuner.model.near import did_you_mean
from autotuner.model.recommendation import Recommendation
from autotuner.model.space import SearchSpace
from autotuner.model.workload import Workload

MODELS: dict[str, type[Document]] = {"Host": Host, "SearchSpace": SearchSpace, "Workload": Workload, "Recommendation": Recommendation}
"""Every kind of document."""


def schema_file(kind: str) -> str:
    """Name of the file that holds the schema of a kind: ``host.schema.json``, ``search_space.schema.json``."""
    return ("search_space" if kind == "SearchSpace" else kind.lower()) + ".schema.json"


def schema(kind: str) -> dict[str, Any]:
    """JSON Schema (2020-12) of a kind of document, for editors. Raises ``UsageError`` for an unknown kind."""
    named = {name.lower(): name for name in MODELS}
    name = named.get(kind.lower().replace("_", "").replace("-", ""))
    if name is None:
        raise UsageError(f"there is no kind of document {kind!r}", hint=did_you_mean(kind, MODELS))
    return _schema(name)


@functools.cache
def _schema(kind: str) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **MODELS[kind].model_json_schema(by_alias=True),
        "title": f"autotuner {kind}",
    }
