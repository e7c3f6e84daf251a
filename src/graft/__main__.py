"""`python -m graft`: the command line, for whoever has several Pythons and means this one."""

from __future__ import annotations

import sys

from graft.cli.main import main

sys.exit(main())
