"""Finds the question that the command line names and hands it the rest; imports nothing else, some take seconds."""

import argparse
import ast
import importlib
import os
import sys
from pathlib import Path

COMMANDS = {
    "attention": "what weights, explaining and windows cost, which claims are true, which explanation is faithful",
    "engine": "the engine without HTTP",
    "gpu": "a graphics card",
    "http": "the service over HTTP",
    "inputs": "networks of published shapes, to measure with",
    "peers": "other engines and servers",
    "quality": "what a precision, vectors in fewer bits and removed parts cost, and what they bring",
    "service": "the process: start, memory, processes, replicas",
}
# Where each question's function is: its docstring begins with the question, or its module's if it is called `main`.
QUESTIONS = {
    "attention claims": "attention.claims:main",
    "attention cost": "attention.cost:cost",
    "attention explaining": "attention.cost:explaining",
    "attention faithfulness": "attention.faithfulness:main",
    "attention windows": "attention.cost:windows",
    "engine transformers": "engine:main",
    "gpu rates": "gpu:main",
    "http closed": "http.questions:closed",
    "http cost": "http.questions:cost",
    "http neighbours": "http.questions:neighbours",
    "http open": "http.questions:at_rates",
    "http storm": "http.questions:storm",
    "http versions": "http.questions:versions",
    "inputs e5": "inputs:e5",
    "inputs network": "inputs:network",
    "peers encode": "peers.encoding:encode",
    "peers int8": "peers.encoding:int8",
    "peers labels": "peers.tasks:labels",
    "peers rerank": "peers.tasks:rerank",
    "quality artifacts": "quality.vectors:changes",
    "quality classifiers": "quality.parts:classifiers",
    "quality formats": "quality.vectors:formats",
    "quality shapes": "quality.parts:shapes",
    "service processes": "service.process:processes",
    "service replicas": "service.replicas:main",
    "service soak": "service.process:soak",
    "service startup": "service.process:startup",
}


def main() -> None:
    """Runs the question that the command line names first."""
    parser = argparse.ArgumentParser("python -m benchmarks", description="Measures, a question at a time.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, about in COMMANDS.items():
        command = commands.add_parser(name, help=about, description=about)
        offered = command.add_subparsers(dest="question", metavar="QUESTION", required=True)
        for question, place in QUESTIONS.items():
            if question.startswith(f"{name} "):
                offered.add_parser(question.split()[1], help=_first_line(place), add_help=False)
    chosen = parser.parse_args(sys.argv[1:3])
    question = f"{chosen.command} {chosen.question}"
    sys.argv = [f"python -m benchmarks {question}", *sys.argv[3:]]
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported
    module, _, function = QUESTIONS[question].partition(":")
    getattr(importlib.import_module(f"benchmarks.{module}"), function)()


def _first_line(place: str) -> str:
    """Of a question's docstring, without importing its module."""
    module, _, function = place.partition(":")
    tree = ast.parse((Path(__file__).parent / f"{module.replace('.', '/')}.py").read_text())
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    docstring = ast.get_docstring(tree if function == "main" else found[0]) or ""
    return docstring.partition("\n")[0].replace("%", "%%")


if __name__ == "__main__":
    main()
