"""What every document that a person writes or reviews has in common."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

API_VERSION: Final = "autotuner/v1"

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$")]
"""A document's name, as it stands in paths and study identities: lower case, digits, ``.``, ``_`` and ``-``; 63 at most."""

Scalar = bool | int | float | str
"""A value of a parameter. Booleans, integers, floats and strings are kept apart (``True`` is not ``1``)."""


def written(value: object) -> str:
    """A value as it is written in a document and on a command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class Strict(BaseModel):
    """A part of a document: unknown keys are errors, values are never coerced, instances never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Metadata(Strict):
    """``metadata:`` of every document."""

    name: Name
    description: str = ""


class Document(Strict):
    """Head of every document."""

    apiVersion: Literal["autotuner/v1"]  # noqa: N815 - the key is camelCase in every Kubernetes-style document
    kind: str
    metadata: Metadata = Field(description="The document's name and an optional description.")

    @property
    def name(self) -> str:
        """The name under ``metadata:``."""
        return self.metadata.name
