"""Documents from files: read, validated by their models and by the rules that go beyond them, with all problems at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from autotuner.documents import plain, yaml_core
from autotuner.documents.finding import find
from autotuner.documents.host_rules import check_host
from autotuner.documents.recommendation_rules import check_recommendation
from autotuner.documents.schemas import MODELS, schema
from autotuner.documents.source import Source
from autotuner.documents.space_rules import check_space
from autotuner.documents.wording import shown
from autotuner.documents.workload_rules import check_workload
from autotuner.errors import InvalidDocument, Problem
from autotuner.model.document import Document
from autotuner.model.host import Host
from autotuner.model.near import near_miss
from autotuner.model.recommendation import Recommendation
from autotuner.model.space import SearchSpace
from autotuner.model.workload import Workload

D = TypeVar("D", bound=Document)


def load_host(name_or_path: str) -> Host:
    """A host by name or path. Raises ``InvalidDocument`` with all problems, or ``UsageError`` when it is not found."""
    return _load(find("hosts", name_or_path), Host)


def load_space(name_or_path: str) -> SearchSpace:
    """A search space by name or path. Raises as ``load_host``."""
    return _load(find("search_spaces", name_or_path), SearchSpace)


def load_workload(name_or_path: str) -> Workload:
    """A workload by name or path. Raises as ``load_host``."""
    return _load(find("workloads", name_or_path), Workload)


def load_recommendation(path: str | Path) -> Recommendation:
    """A recommendation. Raises ``InvalidDocument`` with all problems."""
    return _load(Path(path), Recommendation)


def check_file(path: str | Path) -> tuple[Problem, ...]:
    """Everything that is wrong with a file or worth a warning, in file order; empty when there is nothing to say."""
    if not str(path):
        return (Problem(file="''", line=1, column=1, message="the path is empty", hint="name a file: autotuner check hosts/NAME.yaml"),)
    source = yaml_core.read(Path(path))
    _validate(source, None)
    return _in_order(source)


def parse_document(text: str, file: str = "<text>") -> Document:
    """The document in a text, of whatever kind it says. Raises ``InvalidDocument`` with all problems."""
    source = yaml_core.parse(text, file)
    document = _validate(source, None)
    if document is None or source.failed:
        raise InvalidDocument(_in_order(source))
    return document


def _load(path: Path, model: type[D]) -> D:
    source = yaml_core.read(path)
    document = _validate(source, model.__name__)
    if source.failed or not isinstance(document, model):
        raise InvalidDocument(_in_order(source))
    return document


def _in_order(source: Source) -> tuple[Problem, ...]:
    unique = dict.fromkeys(source.problems)
    return tuple(sorted(unique, key=lambda problem: (problem.line, problem.column)))


def _validate(source: Source, wanted: str | None) -> Document | None:
    """Report everything; the document, or ``None`` when its values have the wrong kinds."""
    if source.value is None:
        if not source.problems:
            source.error((), "the document is empty", "lay out examples with: autotuner init")
        return None
    kind = _kind(source, wanted)
    if kind is None:
        return None
    document: Document | None = None
    try:
        document = MODELS[kind].model_validate_json(json.dumps(source.value))
    except ValidationError as error:
        plain.report(source, error, schema(kind))
    _RULES[kind](source, document)
    return document


def _kind(source: Source, wanted: str | None) -> str | None:
    """The kind that the document says it is, when it is one that is known and wanted."""
    if not isinstance(source.value, dict):
        source.error(
            (), f"a document must be a mapping with apiVersion, kind and metadata, but is {shown(source.value)}", "write 'key: value' lines"
        )
        return None
    kind = source.value.get("kind")
    if "kind" not in source.value:
        source.error((), "the key 'kind' is missing", f"add 'kind: {wanted}'" if wanted else f"add 'kind:' with one of {', '.join(MODELS)}")
    elif not isinstance(kind, str) or kind not in MODELS:
        hint = near_miss(kind, MODELS) or "lay out an example of each with: autotuner init"
        source.error(("kind",), f"'kind' must be one of {', '.join(MODELS)}, but is {shown(kind)}", hint)
    elif wanted and kind != wanted:
        source.error(("kind",), f"a {wanted} is needed here, but this is a {kind}", f"name a file with kind: {wanted}")
    else:
        return kind
    return None


def _host(source: Source, _: Document | None) -> None:
    check_host(source)


def _space(source: Source, document: Document | None) -> None:
    check_space(source, document if isinstance(document, SearchSpace) else None)


def _workload(source: Source, _: Document | None) -> None:
    check_workload(source)


def _recommendation(source: Source, document: Document | None) -> None:
    check_recommendation(source, document if isinstance(document, Recommendation) else None)


_RULES: dict[str, Callable[[Source, Document | None], None]] = {
    "Host": _host,
    "SearchSpace": _space,
    "Workload": _workload,
    "Recommendation": _recommendation,
}
