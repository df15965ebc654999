"""Where documents are: the user's own folders first, then what the package ships."""

from __future__ import annotations

import json
from pathlib import Path

import autotuner
from autotuner.documents.schemas import MODELS, schema, schema_file
from autotuner.documents.writing import write_text
from autotuner.errors import UsageError
from autotuner.model.near import did_you_mean

KINDS = ("hosts", "search_spaces", "workloads")
"""Folders that documents are found in by name."""
_SHOWN = 60
"""Characters of a name that no file can have, in an error."""


def shipped(kind: str) -> Path:
    """The folder of shipped documents: package data of an installed package, the repository's own folder in a source checkout."""
    package = Path(autotuner.__file__).parent
    data = package / "data" / kind
    return data if data.is_dir() else package.parent / kind


def names(kind: str) -> tuple[str, ...]:
    """Names that ``find`` knows without a path, in order."""
    folders = (Path(kind), shipped(kind))
    return tuple(sorted({file.stem for folder in folders if folder.is_dir() for file in folder.glob("*.yaml")}))


def find(kind: str, name_or_path: str) -> Path:
    """The file that a name or path stands for; ``kind`` is one of ``KINDS``.

    An existing path wins, then ``./KIND/NAME.yaml``, then what is shipped. Raises ``UsageError`` naming the nearest known name.
    """
    singular = kind.removesuffix("s").replace("_", " ")
    try:
        return _find(kind, singular, name_or_path)
    except (OSError, RuntimeError) as error:  # a name that no file can have; a home folder of nobody
        shown = name_or_path if len(name_or_path) <= _SHOWN else name_or_path[:_SHOWN] + "…"
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"there can be no {singular} {shown!r}: {reason}", hint=f"known by name are: {', '.join(names(kind))}") from error


def _find(kind: str, singular: str, name_or_path: str) -> Path:
    path = Path(name_or_path).expanduser()
    is_path = path.name != name_or_path or path.suffix in {".yaml", ".yml"}
    if path.is_file() or (is_path and path.exists()):
        return path
    if is_path:
        known = [str(file) for file in sorted(path.parent.glob("*.yaml"))] if path.parent.is_dir() else []
        hint = (
            did_you_mean(name_or_path, known, otherwise="in that folder are") if known else f"known by name are: {', '.join(names(kind))}"
        )
        raise UsageError(f"there is no file {name_or_path}", hint=hint)
    for folder in (Path(kind), shipped(kind)):
        if (folder / f"{name_or_path}.yaml").is_file():
            return folder / f"{name_or_path}.yaml"
    known = list(names(kind))
    raise UsageError(
        f"there is no {singular} {name_or_path!r}, neither in ./{kind}/ nor among the shipped ones",
        hint=did_you_mean(name_or_path, known) if known else "lay out examples with: autotuner init",
    )


_README = """# Recommendations

`autotuner tune HOST` writes one file per workload here: `HOST/WORKLOAD.yaml`.
`spec` is what would be applied; `evidence`, `checks` and `alternatives` say why. Review and commit them like code.
"""


def scaffold_files(folder: Path) -> dict[Path, str]:
    """Every file that ``scaffold`` lays out, with its text."""
    files = {folder / kind / file.name: file.read_text(encoding="utf-8") for kind in KINDS for file in sorted(shipped(kind).glob("*.yaml"))}
    files[folder / "recommendations" / "README.md"] = _README
    for kind in MODELS:
        files[folder / "schemas" / schema_file(kind)] = schema_text(kind)
    return files


def schema_text(kind: str) -> str:
    """The JSON Schema of a kind as it stands in a file."""
    return json.dumps(schema(kind), indent=2, ensure_ascii=False) + "\n"


def scaffold(folder: str | Path) -> list[Path]:
    """Lay out hosts, search spaces, workloads, schemas and a place for recommendations; returns what was written.

    A file that is there already is never touched. Raises ``AutotunerError`` when the folder cannot be written.
    """
    written = []
    for path, text in scaffold_files(Path(folder)).items():
        if not path.exists() and not path.is_symlink():
            write_text(path, text)
            written.append(path)
    return written
