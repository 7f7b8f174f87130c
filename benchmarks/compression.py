"""Does gzip pay? Bytes and time of real answers at each level, in one run, against the link that would make up for it.

An answer is sent whole or compressed; compressing pays on a link that is slower than the bytes saved over the seconds
that they take: the last column, in Mbit/s. `python -m benchmarks.compression artifacts/all-MiniLM-L6-v2`
"""

import argparse
import asyncio
import json
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.texts import build_corpus
from service.encoding import encode
from service.engine import Engine
from service.exchange import Exchange
from service.metrics import Metrics
from service.schemas import EncodeRequest
from service.services import Services
