"""What runs on the host itself: standard library only, Python 3.8 or newer, nothing of autotuner imported.

``services/hostside.py`` packs this folder into one file, writes it to the host's state folder and calls it with the host's own
``python3``: a request as JSON on standard input, a reply as JSON on standard output. Everything that must outlive the tuner (the
supervisor of a server, the watchdog that brings production back) is such a program, detached.
"""

from __future__ import annotations
