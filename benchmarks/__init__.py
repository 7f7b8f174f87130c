"""Scripts that measure, one question each: `python -m benchmarks.NAME --help` from the project's root.

- `texts`: how long are the texts that the others use?
- `engine`: how fast is the engine alone, and how close to the machine's limit?
- `stages`: what does each stage give, from PyTorch to HTTP, and what does attention cost?
- `http_closed`: what do clients get that ask as fast as they are answered, and how much of the engine is that?
- `http_open`: what latency at which rate, and what happens past the limit?
- `http_cost`: what does a request cost beside the model?
- `attention_cost`: what does each form of attention cost against the embedding alone?
- `compression`: does gzip pay?
- `soak`: does memory stay flat under long mixed load?
- `startup`: how long until ready?
- `replicas`: what is lost when replicas behind nginx are replaced, and when one dies?
- `peers`: how do Infinity, sentence-transformers and OpenVINO compare?
- `gpu`: what does a GPU give, and how much of it is used? `drawn` writes larger networks to try it with.
- `quality`, `pruning`: what do a precision and pruned heads cost in quality, and what do the latter bring?
- `attention_claims`: what is said about multi-head attention, and what is true?

Every script prints what it measured as tables, then the machine and how much of it others used meanwhile, and one line
of JSON last. Rates that are compared come from one run, taken in turns, so that a drift of the machine hits them alike.
"""
