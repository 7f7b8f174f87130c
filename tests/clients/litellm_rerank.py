"""litellm's own `rerank`, in the environment that has it: `python litellm_rerank.py REQUESTS`, a JSON list of keywords.

Prints a JSON list of what it answers. A process of its own, because that environment is of other versions.
"""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for a table of prices
os.environ["LITELLM_LOG"] = "ERROR"

import litellm

litellm.telemetry = False
answers = [litellm.rerank(**wanted).model_dump() for wanted in json.loads(sys.argv[1])]
sys.stdout.write(json.dumps(answers, default=str))
