"""``python -m autotuner.engines.simulated --simulate JSON …``: run a simulated server with SGLang's flags.

Launches of other names have other noise; the name is in the environment that the service manager started the server with.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from autotuner.engines.simulated.crash import refusal
from autotuner.engines.simulated.flags import build_parser
from autotuner.engines.simulated.resolve import Resolved, resolve
from autotuner.engines.simulated.server import SimulatedServer, log
from autotuner.engines.simulated.setting import Setting, parse_setting
from autotuner.services.onhost.processes import SERVICE_MARK, service_name


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve; the exit code: 0 stopped, 1 refused, 2 a flag that is not known."""
    parser = build_parser()
    args = parser.parse_args(arguments)
    if args.simulate is None:
        parser.error("the following arguments are required: --simulate")
    try:
        setting = parse_setting(args.simulate, launch=service_name(os.environ.get(SERVICE_MARK, "")))
    except ValueError as error:
        parser.error(f"argument --simulate: {error}")
    resolved = resolve(args, setting)
    refused = resolved.rejection
    if refused is not None and refused.stage == "resolve":
        for notice in resolved.notices:
            log(notice)
        sys.stderr.write(refusal(refused) + "\n")
        return 1
    return asyncio.run(_serve(resolved, setting))


async def _serve(resolved: Resolved, setting: Setting) -> int:
    return await SimulatedServer(resolved, setting).run()


if __name__ == "__main__":
    sys.exit(main())
