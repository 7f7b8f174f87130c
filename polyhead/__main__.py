"""Entry point of `python -m polyhead`, which is `polyhead`."""

import sys

from polyhead.cli import main

sys.exit(main())
