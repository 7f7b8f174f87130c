"""Commands that measure, one question each: `python -m benchmarks.NAME --help` lists the questions of a command.

- `engine`: the engine without HTTP. `rates`: how fast, and how close to the machine's limit; `stages`: from PyTorch to
  the service; `training`: tokens a second of a training step; `transformers`: large encoders beside `transformers`.
- `http`: the service over HTTP. `closed`: clients that ask as fast as they are answered; `open`: latency at a rate, and
  overload; `cost`: processor time a request; `gzip`: whether compressing answers pays;
  `versions`: the services of several checkouts.
- `peers`: other engines and servers. `encode`: Infinity, sentence-transformers and OpenVINO; `int8`: OpenVINO,
  CTranslate2 and ONNX Runtime's own quantization, with what they cost in quality; `rerank`: scoring documents
  against a query.
- `attention`: `cost`: what each form of attention costs; `faithfulness`: which method finds the input tokens that carry
  a similarity; `claims`: what is said about multi-head attention, and what is
  true; `windows`: what blocks of queries save where layers see a window.
- `quality`: `pairs`: quality of precisions on rated pairs; `pruning`: quality and speed of pruned artifacts;
  `healing`: of healed ones, and how near they come to the whole network.
- `service`: the process. `startup`, `soak` (memory over an hour), `replicas` (behind nginx, replaced and killed).
- `gpu`: `rates`: what a graphics card gives, and how much of it is used.
- `inputs`: `lengths` of the texts that are used; `network` and `reranker` write an encoder and a
  cross-encoder of a published shape.

Every command prints tables, then the machine and how many cores other programs used meanwhile, and one line of JSON
last. Rates that are compared come from one run and are taken in turns, so that a drift of the machine affects all of
them. Shared parts are in `benchmarks/lib`, the other engines in `benchmarks/peers`.
"""
