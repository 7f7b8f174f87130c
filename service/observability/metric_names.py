"""The name of every metric: the registry, the dashboard and the alerts take it from here.

A counter's name ends in `_total`; a histogram's series are `_bucket`, `_count` and `_sum` of its name. The names
`process_...` and `python_...` are prometheus-client's own and stand where they are used.
"""

REQUEST_DURATION = "polyhead_request_duration_seconds"
STAGE_DURATION = "polyhead_stage_duration_seconds"
REQUESTS_REJECTED = "polyhead_requests_rejected_total"
CALLER_DEADLINES = "polyhead_caller_deadlines_total"
ANSWER_DURATION = "polyhead_answer_duration_seconds"
REQUESTS_IN_FLIGHT = "polyhead_requests_in_flight"
CLIENT_DISCONNECTS = "polyhead_client_disconnects_total"

TEXTS = "polyhead_texts_total"
TOKENS = "polyhead_tokens_total"
TRUNCATED_TEXTS = "polyhead_truncated_texts_total"
INPUT_TOKENS = "polyhead_input_tokens"
ATTENTION_REQUESTS = "polyhead_attention_requests_total"
ATTENTION_BYTES = "polyhead_attention_bytes_total"

BATCH_TEXTS = "polyhead_batch_texts"
BATCH_TOKENS = "polyhead_batch_tokens"
BATCH_PADDING_RATIO = "polyhead_batch_padding_ratio"
PADDING_TOKENS = "polyhead_padding_tokens_total"

QUEUE_TEXTS = "polyhead_queue_texts"
QUEUE_TOKENS = "polyhead_queue_tokens"
QUEUE_LIMIT_TOKENS = "polyhead_queue_limit_tokens"
QUEUE_OLDEST_AGE = "polyhead_queue_oldest_age_seconds"

READY = "polyhead_ready"
MODEL_INFO = "polyhead_model_info"
MODEL_LOAD = "polyhead_model_load_seconds"
WORKER_BUSY = "polyhead_worker_busy_seconds_total"
WORKERS = "polyhead_workers"
INTRA_OP_THREADS = "polyhead_intra_op_threads"
CPU_LIMIT = "polyhead_cpu_limit_cores"
MEMORY_LIMIT = "polyhead_memory_limit_bytes"
LOOP_LAG = "polyhead_event_loop_lag_seconds"

PROCESSES = "polyhead_processes"  # these two only where there are several
PROCESS_RESTARTS = "polyhead_process_restarts_total"
