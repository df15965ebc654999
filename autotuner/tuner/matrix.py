"""Which cells a launch measures, and how."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autotuner.errors import UsageError
from autotuner.loadgen.prompts import PromptSource
from autotuner.model.workload import Cell, Sampling, Workload, once
from autotuner.runner import CellJob


def jobs_for(workloads: Sequence[Workload], cells: Iterable[Cell], *, seed: int, holdout: bool = False) -> tuple[CellJob, ...]:
    """A job for every cell; a cell of a workload is asked with that workload's prompts and sampling.

    Raises ``UsageError`` when two workloads want the same cell measured in different ways.
    """
    owner: dict[str, Workload] = {}
    for workload in workloads:
        for cell in workload.cells:
            first = owner.setdefault(cell.key, workload)
            if (first.prompts, first.sampling) != (workload.prompts, workload.sampling):
                raise UsageError(
                    f"workloads {first.name} and {workload.name} measure {cell} with different prompts or sampling",
                    hint="give one of the cells other output_tokens, or tune the two workloads apart",
                )
    sources: dict[tuple[str, ...], PromptSource] = {}

    def job(cell: Cell) -> CellJob:
        workload = owner.get(cell.key)
        domains = workload.prompts if workload else workloads[0].prompts
        source = sources.setdefault(domains, PromptSource(domains, seed, holdout=holdout))
        if workload is None:
            return CellJob(cell=cell, prompts=source, sampling=Sampling(), needed=False)
        return CellJob(cell=cell, prompts=source, sampling=workload.sampling, slos=workload.slos)

    return tuple(job(cell) for cell in cells)


def cells_of(workloads: Iterable[Workload]) -> tuple[Cell, ...]:
    """The cells that these workloads are judged by, each once."""
    return once(cell for workload in workloads for cell in workload.cells)
