"""Every setting of the process, read once at start-up: a flag, else `POLYHEAD_*`, else the default.

It knows the limits and their defaults, not who enforces them. Nothing else in the service reads the environment.
"""

import difflib
import re
import sys
from argparse import SUPPRESS, Action, ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import orjson
from pydantic import Field, SecretStr, ValidationError, create_model, field_validator, model_validator
from pydantic_settings import BaseSettings, CliApp, CliSettingsSource, SettingsConfigDict

from model.artifact import ArtifactError, read_manifest

ENVIRONMENT_PREFIX = "POLYHEAD_"
PROGRAM = "python -m service"
_SECRETS = frozenset({"api_keys", "trace_endpoint"})  # whose values no message shows
MIB = 2**20
MOST_WORKERS = 1024
BATCH_TOKENS: Mapping[str, int] = {"cpu": 512, "cuda": 16384}
"""Of one run, by where the model runs. On a GPU a run costs a millisecond or more, however few tokens it has."""
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s*A-Z]+")  # as browsers write it: nothing would match any other
_HOST = re.compile(r"(\*\.)?[\w.-]+|\[[0-9a-fA-F:.]+\]", re.ASCII)  # no request would match any other


class SettingsError(ValueError):
    """Settings that cannot be used; the message is one line and names the flag."""


class Settings(BaseSettings):
    """Serve an encoder artifact over HTTP. Every flag can be set as POLYHEAD_<NAME> instead.

    `polyhead tune ARTIFACT` measures which --processes, --workers and --intra-op-threads suit this machine.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        frozen=True,
        use_attribute_docstrings=True,
        cli_kebab_case=True,
        cli_avoid_json=True,
    )

    model: Path
    """directory of the artifact to serve, made by `python -m export`"""
    more_models: str = ""
    """artifacts to serve beside it, separated by commas; a request chooses one by its id, or by the NAME of
    NAME=DIRECTORY"""
    default: str = ""
    """name of the model that answers requests which name none; empty: --model"""
    model_store: Path | None = None
    """directory of artifacts that POST /admin/models of the admin port may load by their names there; without it models
    neither come nor go while others are served"""
    max_model_bytes: int = Field(0, ge=0)
    """bytes of all models' files together: one more model of the store unloads the least recently used ones, but for
    the default; 0 is no limit"""
    host: str = Field("127.0.0.1", min_length=1)
    """address to listen on; 0.0.0.0 is every IPv4 address of the machine, :: every address it has"""
    port: int = Field(8000, ge=0, le=65535)
    """port to listen on; 0 chooses a free one"""
    uds: Path | None = None
    """Unix socket to listen on, instead of host and port; only programs on this machine reach it"""
    admin_port: int | None = Field(None, ge=0, le=65535)
    """second port for /metrics, /docs and /openapi.json, which are not on the first one then; 0 chooses a free one"""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """least severe log line that is written; one line a request is at info"""
    trace_endpoint: str = Field("", pattern=r"^(https?://[^@\s]+)?$")  # a password would be logged
    """where spans of requests go (OTLP over HTTP), as http://collector:4318/v1/traces; empty: nothing is traced"""
    trace_share: float = Field(1.0, ge=0, le=1)
    """share of requests that are traced, of those whose caller did not decide by sending a traceparent"""

    provider: Literal["cpu", "cuda"] = "cpu"
    """where the model runs; never falls back to another one"""
    processes: int = Field(1, ge=0, le=256)
    """processes that serve, each with a model of its own and its share of cores, connections, queue and held bytes;
    0 chooses by cores and precision"""
    workers: int = Field(0, ge=0, le=MOST_WORKERS)
    """threads of each process that run the model; 0 is one for each of its cores, or one for cuda"""
    intra_op_threads: int = Field(1, ge=1, le=1024)
    """threads of ONNX Runtime inside one run"""
    max_batch_tokens: int = Field(0, ge=0)
    """most tokens in one run, padding included; a longer text runs alone; 0 is 512, or 16384 for cuda"""

    api_keys: SecretStr = SecretStr("")
    """keys that requests must bring, of at least 16 characters, separated by commas; set POLYHEAD_API_KEYS, every user
    of a machine sees flags"""
    api_keys_file: Path | None = None
    """file with such keys, one a line; read again when it changes"""
    allowed_hosts: str = ""
    """names that the Host header may hold, separated by commas, *.example.com for all below; empty allows every name,
    and probes and /metrics are answered under any"""
    cors_origins: str = ""
    """origins whose pages may call the API from a browser, separated by commas, or *; empty allows none"""

    max_body_bytes: int = Field(2 * MIB, ge=1)
    """largest request body"""
    max_held_body_bytes: int = Field(128 * MIB, ge=1)
    """most bytes of request bodies held at once, of all requests; beyond, requests are answered 429"""
    max_texts: int = Field(2048, ge=1)
    """most texts in one request; as many as OpenAI takes, and its clients send"""
    max_text_characters: int = Field(131_072, ge=1)
    """longest text, in characters; tokenising takes some 600 bytes of memory for each that is a token of its own"""
    max_request_tokens: int = Field(65_536, ge=1)
    """most tokens in one request, after truncation"""
    max_queue_tokens: int = Field(131_072, ge=1)
    """most tokens waiting for a worker, of all requests; beyond, requests are answered 429"""
    max_queue_delay: float = Field(0.5, ge=0, allow_inf_nan=False)
    """seconds a request may wait to be tokenised and run, beside 16 times its own work; beyond, it is answered 429"""
    max_embedding_bytes: int = Field(64 * MIB, ge=1)
    """most bytes of embeddings in one answer, as float32, or of labels with their scores"""
    max_attention_bytes: int = Field(32 * MIB, ge=1)
    """most bytes of attention weights in one answer, as float32"""
    max_attention_work_bytes: int = Field(256 * MIB, ge=1)
    """most bytes of attention weights computed for one request: every head and query of the layers asked for"""
    max_explained_tokens: int = Field(256, ge=1)
    """longest text that is explained through the network, in tokens; its cost grows with their square, and a request
    may cost as much as two such texts"""
    max_held_answer_bytes: int = Field(512 * MIB, ge=1)
    """most bytes of answers held at once, of all requests: what is computed for them, and what clients have not read
    yet; beyond, requests are answered 429, unless no other is being answered"""

    max_connections: int = Field(4096, ge=1)
    """most open connections; beyond, clients are answered 503 and closed. The admin port has 64 of its own"""
    max_header_bytes: int = Field(32 * 1024, ge=256)
    """most bytes of a request's headers"""
    receive_timeout: float = Field(20.0, gt=0, allow_inf_nan=False)
    """seconds a client has to send a request, from its first byte to its last"""
    send_timeout: float = Field(20.0, gt=0, allow_inf_nan=False)
    """seconds an answer may stay unread, plus those that it takes at min-send-rate"""
    min_send_rate: int = Field(256 * 1024, ge=1)
    """bytes a second that a client has to read at least"""
    keep_alive_timeout: float = Field(75.0, ge=0, allow_inf_nan=False)
    """seconds an idle connection is kept for its next request"""
    request_timeout: float = Field(30.0, gt=0, allow_inf_nan=False)
    """seconds a request may take, then it is answered 504; X-Request-Timeout can only shorten it"""
    drain_delay: float = Field(0.0, ge=0, allow_inf_nan=False)
    """seconds of not being ready, but still serving, between SIGTERM and closing the port"""
    shutdown_timeout: float = Field(30.0, ge=0, allow_inf_nan=False)
    """seconds that running requests get to finish once the port is closed"""

    @property
    def batch_tokens(self) -> int:
        """Most tokens in one run, padding included."""
        return self.max_batch_tokens or BATCH_TOKENS[self.provider]

    @property
    def named_models(self) -> list[tuple[str, Path]]:
        """The artifacts, each with the name that it was given, if any."""
        return [_named(given) for given in (str(self.model), *split_list(self.more_models))]

    @field_validator("model", "model_store", "uds", "api_keys_file", mode="before")
    @classmethod
    def _is_given(cls, path: Any) -> Any:
        if path == "":  # else a variable that a template left empty would mean the working directory
            raise ValueError("expected a path, or not to be set")
        return path

    @field_validator("*")
    @classmethod
    def _fits_json(cls, value: Any) -> Any:
        try:
            orjson.dumps(value, default=str)
        except TypeError as error:  # of what is not UTF-8, or beyond 64 bits: the first line of the log would fail
            raise ValueError(str(error)) from None
        return value

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        models = self.named_models
        names = [name or own_name(path) or str(path) for name, path in models] if len(models) > 1 else []
        for name in sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"more-models: two models have one name, {name}; expected another NAME=DIRECTORY for each")
        if self.model_store is not None and (self.processes != 1 or self.admin_port is None):
            raise ValueError("model-store: needs --admin-port, on which models are added, and --processes 1")
        if self.model_store is not None and not self.model_store.is_dir():
            raise ValueError(f"model-store: {self.model_store} is no directory")
        if self.admin_port and self.admin_port == self.port and self.uds is None:
            raise ValueError(f"admin-port is {self.admin_port}, as port is: expected another one")
        has_keys = bool(split_list(self.api_keys.get_secret_value()))
        if "api_keys" in self.model_fields_set and not has_keys:  # a template left it empty: open to everybody
            raise ValueError("api-keys (POLYHEAD_API_KEYS) is set and holds no key: leave it out, or put keys into it")
        for origin in split_list(self.cors_origins):
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"cors-origins has {origin!r}: expected scheme://host[:port] in small letters, no path, no *"
                )
        for host in split_list(self.allowed_hosts):
            if not _HOST.fullmatch(host):
                raise ValueError(f"allowed-hosts has {host!r}: expected a name without scheme, port and path")
        for whole, part, what in (
            ("max_held_body_bytes", "max_body_bytes", "body could never be taken"),
            ("max_queue_tokens", "max_request_tokens", "request could never be served"),
        ):
            most, least = getattr(self, whole), getattr(self, part)
            if most < least:
                raise ValueError(
                    f"{_flag(whole)} is {most}: at least {_flag(part)} ({least}) is needed, or the largest {what}"
                )
        return self


def read_settings(
    arguments: Sequence[str] | None = None, program: str = PROGRAM, model: Path | None = None
) -> Settings:
    """Reads flags and environment; `--help` and unknown flags end the process as argparse does.

    Args:
        arguments: None are the process's own.
        program: the words that it was called by, for help.
        model: the artifact where neither names one; None requires it.

    Raises:
        SettingsError: a setting is missing or out of range.
    """
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        kind = Settings if model is None else _with_default(model)
        source = cli_source(kind, program)
        _refuse_unknown_flag(source.root_parser, given)
        return CliApp.run(kind, cli_args=given, cli_settings_source=source)
    except ValidationError as error:
        raise SettingsError(_one_line(error)) from error


def cli_source(kind: type[Settings], program: str) -> CliSettingsSource[ArgumentParser]:
    """The command line of settings: a flag each, and the artifact as an argument too."""
    return CliSettingsSource[ArgumentParser](kind, cli_prog_name=program, add_argument_method=_add_argument)


class _Models(Action):
    """The arguments without a flag: the first one is `--model`, the others are `--more-models`."""

    def __call__(self, _parser: ArgumentParser, namespace: Namespace, values: Any, _name: str | None = None) -> None:
        """Puts them where the flags would."""
        if values:
            namespace.model = values[0]
        if values[1:]:
            namespace.more_models = ",".join(values[1:])


def _add_argument(parser: ArgumentParser, *names: str, **options: Any) -> Action:
    """Adds a flag, and beside `--model` the arguments that say the same: one of the two may be given."""
    if "--model" not in names:
        return parser.add_argument(*names, **options)
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "model",
        nargs="*",
        action=_Models,
        default=SUPPRESS,
        metavar="ARTIFACT",
        help="the same as --model, without its name; others behind it are --more-models",
    )
    return either.add_argument(*names, **options)


def _refuse_unknown_flag(parser: ArgumentParser, given: Sequence[str]) -> None:
    """Ends the process, and names the nearest flag: argparse would take the flag's value for an artifact."""
    known = [name for action in parser._actions for name in action.option_strings]
    for word in given[: given.index("--")] if "--" in given else given:
        flag = word.partition("=")[0]
        if flag.startswith("--") and flag not in known:
            parser.error(f"there is no {flag}{_meant(flag, known)}")


def _with_default(model: Path) -> type[Settings]:
    described = Settings.model_fields["model"].description
    return create_model(
        "Settings", __base__=Settings, __doc__=Settings.__doc__, model=(Path, Field(model, description=described))
    )


def _named(given: str) -> tuple[str, Path]:
    name, equals, directory = given.partition("=")
    has_name = equals and name and directory and not Path(given).exists()
    return (name, Path(directory)) if has_name else ("", Path(given))


def _flag(name: str) -> str:
    return name.replace("_", "-")


def split_list(value: str) -> list[str]:
    """The entries of a comma-separated setting."""
    return [entry for part in value.split(",") if (entry := part.strip())]


def misspelt_variables(names: Iterable[str]) -> list[str]:
    """What to say of each variable with our prefix that no setting reads.

    They are reported, not refused: Kubernetes sets POLYHEAD_SERVICE_HOST and the like for a service named polyhead.
    """
    known = [*(field.upper() for field in Settings.model_fields), "CACHE"]  # the last is the command line's
    found = []
    for name in sorted(names):
        prefix, _, short = name.upper().partition("_")  # read whatever its case
        if f"{prefix}_" == ENVIRONMENT_PREFIX and short not in known:
            found.append(f"no setting is called {name}{_meant(short, known, ENVIRONMENT_PREFIX)}")
    return found


def _meant(name: str, known: Sequence[str], prefix: str = "") -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {prefix}{nearest[0]}?" if nearest else ""


def own_name(directory: Path) -> str:
    """What an artifact calls itself; empty of what is none, which is said when it is loaded."""
    try:
        return read_manifest(directory).model
    except (ArtifactError, OSError):
        return ""


def _one_line(error: ValidationError) -> str:
    problems = []
    for problem in error.errors(include_url=False):
        message = problem["msg"].removeprefix("Value error, ")
        if not problem["loc"]:
            problems.append(message)
            continue
        name, got = str(problem["loc"][0]), f", got {problem['input']!r}"
        if problem["type"] == "missing":
            message, got = f"required: {Settings.model_fields[name].description}", ""
        if problem["type"] == "string_pattern_mismatch":
            message = f"expected {Settings.model_fields[name].description}"
        got = "" if name in _SECRETS else got
        problems.append(f"--{_flag(name)} ({ENVIRONMENT_PREFIX}{name.upper()}): {message}{got}")
    return "; ".join(problems)
