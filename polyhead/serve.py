"""`polyhead serve MODEL...`: hub ids, checkpoints' folders or artifacts; exported first if they are none."""

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import get_args

import typer

from export.command import CommandParser
from export.sources import ALLOW_PICKLES
from model.artifact import ONNX_RUNTIME, OPENVINO
from model.config_parts import Precision, Task
from polyhead.models import DEFAULT_ARTIFACT, Tuned, Wanted, artifact_to_serve, is_artifact, tuned_for
from polyhead.output import say
from service.settings import Settings, SettingsError, cli_source, read_settings

PROGRAM = "polyhead serve"
WRONG_SETTINGS = 2


def parser() -> argparse.ArgumentParser:
    """Every flag, described: the service's and an export's."""
    made = cli_source(Settings, PROGRAM).root_parser
    made.description = (
        "Serves models over HTTP: each a Hugging Face id, a checkpoint's folder, or an artifact. What is no artifact\n"
        "is exported first and kept (POLYHEAD_CACHE; `polyhead cache` lists it). Of several the field `model` of a\n"
        "request chooses one, by its id or as NAME of NAME=MODEL. Every flag of the service can be set as\n"
        "POLYHEAD_<NAME> instead.\n\n"
        f"Without a model: {DEFAULT_ARTIFACT} if it is there, else the default model."
    )
    for action in made._actions:
        if action.dest == "model":
            action.metavar = "MODEL"
            action.help = "Hugging Face id, checkpoint's folder, or artifact; NAME=MODEL names it"
    _add_export_flags(made)
    return made


def read_and_export(arguments: list[str]) -> Settings:
    """The settings to serve with, once their model is an artifact."""
    flags = CommandParser(PROGRAM, add_help=False, allow_abbrev=False)
    _add_export_flags(flags)
    chosen, rest = flags.parse_known_args(arguments)
    try:
        settings = read_settings(rest, PROGRAM, DEFAULT_ARTIFACT)
    except SettingsError as error:
        say(f"{PROGRAM}: {error}")
        raise typer.Exit(WRONG_SETTINGS) from None
    if chosen.offline:
        os.environ["HF_HUB_OFFLINE"] = "1"  # read by huggingface_hub when it is imported
    pickles = chosen.allow_pickled_weights
    precision = chosen.precision or Wanted().precision
    wanted = Wanted(None, chosen.revision, precision, chosen.task, chosen.max_length, pickles, chosen.engine)
    found = []
    models = settings.named_models
    are_exported = [not is_artifact(model) for _, model in models]
    for (name, model), is_exported in zip(models, are_exported, strict=True):
        form = wanted if is_exported or not any(are_exported) else Wanted()
        tuned = tuned_for(model)
        if tuned and is_exported and not (chosen.precision or chosen.engine):
            form = replace(form, precision=tuned.precision, engine=tuned.engine)
        artifact = artifact_to_serve(model, form)
        if artifact != model:
            say(f"{PROGRAM}: serving {artifact}; `polyhead tune {model}` measures what suits this machine")
        found.append(f"{name}={artifact}" if name else str(artifact))
    layout = _layout(settings, tuned) if len(models) == 1 else {}
    return settings.model_copy(update={"model": Path(found[0]), "more_models": ",".join(found[1:]), **layout})


def _layout(settings: Settings, tuned: Tuned | None) -> dict[str, int]:
    """The tuned use of the cores, unless a part of it was set."""
    if tuned is None or not settings.model_fields_set.isdisjoint(tuned.layout):
        return {}
    say(f"{PROGRAM}: uses the cores as `polyhead tune` found best here: {tuned.layout}")
    return tuned.layout


def _add_export_flags(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("export")
    group.add_argument("--precision", choices=get_args(Precision), help="of the export (default: fp32, or tuned)")
    group.add_argument("--engine", choices=(ONNX_RUNTIME, OPENVINO), help="what computes plain answers, of the export")
    group.add_argument("--task", choices=get_args(Task), help="what to export, if the checkpoint does not say")
    group.add_argument("--max-length", type=int, metavar="TOKENS", help="longest text to serve")
    group.add_argument("--revision", help="branch, tag or commit on the hub")
    group.add_argument("--offline", action="store_true", help="never ask the network")
    group.add_argument(ALLOW_PICKLES, action="store_true", help="read tensors from pickles, where no safetensors are")
