"""Serving a configuration on a host, and leaving the host as it was."""

from __future__ import annotations

from autotuner.deploy.production import ProductionState
from autotuner.deploy.server import Server
from autotuner.deploy.session import HostSession

__all__ = ["HostSession", "ProductionState", "Server"]
