import re
from pathlib import Path

import pytest

from service.__main__ import main
from service.settings import Settings, SettingsError, misspelt_variables, read_settings


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"POLYHEAD_{name.upper()}", raising=False)


def test_flag_beats_variable_beats_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_settings(["--model", "somewhere"]).host == "127.0.0.1", "this machine only, unless told otherwise"
    monkeypatch.setenv("POLYHEAD_MODEL", "from-variable")
    monkeypatch.setenv("POLYHEAD_PORT", "9000")
    monkeypatch.setenv("POLYHEAD_MAX_TEXTS", "7")
    settings = read_settings(["--port", "9001"])
    assert (settings.model, settings.port, settings.max_texts) == (Path("from-variable"), 9001, 7)


HOSTS = "a.example, *.b.example, localhost, 127.0.0.1, [::1], my_service"
TAKEN: list[tuple[str, str, object]] = [  # flags besides --model, a setting, and what it is then
    ("", "batch_tokens", 512),
    ("--provider=cuda", "batch_tokens", 16384),
    ("--max-batch-tokens=7", "batch_tokens", 7),
    # what holds one request may be just as large
    ("--max-queue-tokens=9|--max-request-tokens=9", "max_queue_tokens", 9),
    ("--max-held-body-bytes=9|--max-body-bytes=9", "max_held_body_bytes", 9),
    ("--uds=socket|--admin-port=8000", "admin_port", 8000),  # beside a socket every one is free
    (f"--allowed-hosts={HOSTS}", "allowed_hosts", HOSTS),
]


@pytest.mark.parametrize(("flags", "name", "value"), TAKEN)
def test_settings_that_are_taken(flags: str, name: str, value: object) -> None:
    assert getattr(read_settings(["--model", "m", *filter(None, flags.split("|"))]), name) == value


def test_every_setting_has_a_flag_and_a_description(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read_settings(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')} " in shown
        assert field.description
    assert "tune ARTIFACT" in shown


@pytest.mark.parametrize(
    "arguments", [["mine", "--port", "9"], ["--port", "9", "mine"], ["--model", "mine", "--port", "9"]]
)
def test_the_artifact_is_an_argument_or_a_flag(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYHEAD_MODEL", "of the variable")
    settings = read_settings(arguments, model=Path("default"))
    assert (settings.model, settings.port) == (Path("mine"), 9)
    assert read_settings([], model=Path("default")).model == Path("of the variable")


@pytest.mark.parametrize("arguments", [["mine", "--model", "yours"], ["--model", "mine", "yours"]])
def test_two_artifacts_are_one_too_many(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        read_settings(arguments)
    assert "not allowed with argument" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--prot", "9"], ["--prot=9"]])
@pytest.mark.parametrize("artifact", [["mine"], ["--model", "mine"], ["--model=mine"], []])
def test_a_misspelt_flag_is_answered_with_the_nearest_one(
    artifact: list[str], wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for given in ([*artifact, *wrong], [*wrong, *artifact]):
        with pytest.raises(SystemExit, match="2"):
            read_settings(given)
        assert capsys.readouterr().err.endswith("error: there is no --prot; did you mean --port?\n")
    assert read_settings(["--port", "9", "--", "--odd"]).model == Path("--odd")


QUEUE = "at least max-request-tokens (65536) is needed, or the largest request could never be served"
HELD = "at least max-body-bytes (2097152) is needed, or the largest body could never be taken"
NAME = "expected a name without scheme, port and path"
WRONG: dict[str, str] = {  # flags besides --model, and what is said
    "--port 65536": "--port (POLYHEAD_PORT): Input should be less than or equal to 65535, got '65536'",
    "--host=": "--host (POLYHEAD_HOST): String should have at least 1 character, got ''",
    "--request-timeout nan": "--request-timeout (POLYHEAD_REQUEST_TIMEOUT): Input should be a finite number, got 'nan'",
    **{
        f"--trace-endpoint {wrong}": "--trace-endpoint (POLYHEAD_TRACE_ENDPOINT): expected where spans of requests "
        "go (OTLP over HTTP), as http://collector:4318/v1/traces; empty: nothing is traced"
        for wrong in ("collector:4318", "grpc://collector", "http://name:password@collector:4318")
    },
    "--max-queue-tokens 9": f"max-queue-tokens is 9: {QUEUE}",
    "--max-held-body-bytes 9": f"max-held-body-bytes is 9: {HELD}",
    **{
        f"--cors-origins http://a.example:8080,{wrong}": f"cors-origins has {wrong!r}: expected "
        "scheme://host[:port] in small letters, no path, no *"
        for wrong in ("https://b.example/", "https://*.example", "https://B.example")
    },
    "--model-store b": "model-store: needs --admin-port, on which models are added, and --processes 1",
    "--model-store b --admin-port 9": "model-store: b is no directory",
    "--port 9 --admin-port 9": "admin-port is 9, as port is: expected another one",
    **{
        f"--allowed-hosts good.example,{wrong}": f"allowed-hosts has {wrong!r}: {NAME}"
        for wrong in ("http://a.example", "a.example:8000", "a.example/x", "*", "::1")
    },
}


@pytest.mark.parametrize(("flags", "message"), WRONG.items())
def test_wrong_settings_are_one_line(flags: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings(["--model", "m", *flags.split()])
    assert str(caught.value) == message


def test_misspelt_variables() -> None:
    names = ["POLYHEAD_MODEL", "POLYHEAD_PROT", "POLYHEAD_QZXW", "PATH", "POLYHEAD_MAX_TEXT"]
    assert misspelt_variables(names) == [
        "no setting is called POLYHEAD_MAX_TEXT; did you mean POLYHEAD_MAX_TEXTS?",
        "no setting is called POLYHEAD_PROT; did you mean POLYHEAD_PORT?",
        "no setting is called POLYHEAD_QZXW",
    ]
    meant = "no setting is called polyhead_prot; did you mean POLYHEAD_PORT?"
    assert misspelt_variables(["POLYHEAD_port", "polyhead_prot"]) == [meant]


def test_a_setting_that_is_missing_names_the_variable_that_was_misspelt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POLYHEAD_MODL", "artifacts/mine")
    assert main([]) == 2
    message = (
        "--model (POLYHEAD_MODEL): required: directory of the artifact to serve, made by `python -m export`; "
        "no setting is called POLYHEAD_MODL; did you mean POLYHEAD_MODEL?"
    )
    assert capsys.readouterr().err == f"python -m service: {message}\n"


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        # a slip in a template would open the service to everybody
        *(("API_KEYS", keys, "POLYHEAD_API_KEYS.* holds no key") for keys in ("", ",", " , ", " ")),
        # or mean the working directory
        *(
            (path, "", rf"\(POLYHEAD_{path}\): expected a path")
            for path in ("MODEL", "MODEL_STORE", "UDS", "API_KEYS_FILE")
        ),
    ],
)
def test_a_variable_that_a_template_left_empty(
    monkeypatch: pytest.MonkeyPatch, name: str, given: str, message: str
) -> None:
    monkeypatch.setenv("POLYHEAD_MODEL", "any")
    monkeypatch.setenv(f"POLYHEAD_{name}", given)
    with pytest.raises(SettingsError, match=message):
        read_settings([])


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        *((flag, "odd\udcff", "not valid UTF-8") for flag in ("--model", "--uds", "--more-models")),
        *((flag, str(2**64), "exceeds 64-bit range") for flag in ("--max-texts", "--max-queue-tokens")),
    ],
)
def test_what_is_not_utf_8_or_beyond_64_bits_is_refused(flag: str, value: str, message: str) -> None:
    """Or the first line of the log, which is JSON, ends the process with a traceback."""
    with pytest.raises(SettingsError, match=rf"^{flag} \(.*\): .*{message}.*, got {re.escape(repr(value))}$"):
        read_settings([*(() if flag == "--model" else ("m",)), flag, value])
