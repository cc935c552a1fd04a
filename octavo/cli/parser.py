"""Flags and help. Engine and server flags are made from the options' own list."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from importlib import import_module
from typing import Any, NoReturn, get_args, get_type_hints

from octavo.config.args import EngineArgs, ServerArgs

Arguments = argparse.Namespace


class _Parser(argparse.ArgumentParser):
    """argparse with the nearest flag for an unknown one."""

    def error(self, message: str) -> NoReturn:
        marker = "unrecognized arguments: "
        if marker in message:
            unknown = message.partition(marker)[2].split()[0]
            near = difflib.get_close_matches(unknown.partition("=")[0], self._flags(), n=1)
            message = f"unknown argument {unknown}"
            if near:
                message += f"; did you mean {near[0]}?"
        self.exit(2, f"octavo: {message}\nTry '{self.prog} --help'.\n")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            # The subcommand's own flags are the ones to compare with.
            parser = getattr(options, "parser", self)
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options

    def _flags(self) -> list[str]:
        return [flag for action in self._actions for flag in action.option_strings]


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(
        prog="octavo",
        description="An LLM inference engine and server.",
        epilog="octavo COMMAND --help tells about one command.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    _serve(_command(commands, "serve", "serve a model over an OpenAI-compatible HTTP API"))
    _generate(_command(commands, "generate", "complete a prompt"))
    _chat(_command(commands, "chat", "talk to a model in the terminal"))
    pull = _command(commands, "pull", "fetch a model, or check one that was fetched")
    pull.add_argument(
        "model", metavar="MODEL", help=EngineArgs.__dataclass_fields__["model"].metadata["help"]
    )
    pull.add_argument("--verify", action="store_true", help="read the files and check their hashes")
    models = _command(commands, "models", "list the models on this machine and the built-in names")
    models.add_argument("--json", action="store_true", help="print JSON")
    env = _command(commands, "env", "show what this machine has and what octavo would use")
    env.add_argument("--json", action="store_true", help="print JSON")
    program = _command(commands, "program", "print a model's program with bytes and flops per op")
    _model(program)
    program.add_argument(
        "--tokens", type=_positive, default=1, help="tokens of the step (default 1)"
    )
    program.add_argument(
        "--context", type=_positive, default=512, help="tokens before a decoded one (default 512)"
    )
    _bench(_command(commands, "bench", "measure latency or throughput; the last line is JSON"))
    return parser


class _Version(argparse.Action):
    def __call__(self, *_: Any) -> NoReturn:
        from octavo import __version__

        print(f"octavo {__version__}")
        raise SystemExit(0)


def _command(commands: Any, name: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + "."
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.set_defaults(run=_lazy(name), parser=parser)
    return parser


def _lazy(name: str) -> Callable[[Arguments], int]:
    """The command's `run`, whose module is imported when it is called."""

    def run(options: Arguments) -> int:
        module = import_module(f"octavo.cli.{name}")
        return int(module.run(options))

    return run


def _serve(parser: argparse.ArgumentParser) -> None:
    _model(parser)
    add_options(parser, EngineArgs, skip=("model",))
    add_options(parser, ServerArgs)


def _generate(parser: argparse.ArgumentParser) -> None:
    _model(parser)
    parser.add_argument("--prompt", help="the prompt (default: standard input)")
    parser.add_argument("--chat", action="store_true", help="put the prompt into the chat template")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    _sampling(parser)
    add_options(parser, EngineArgs, skip=("model", "seed"))


def _chat(parser: argparse.ArgumentParser) -> None:
    _model(parser)
    parser.add_argument("--system", help="a system message")
    _sampling(parser)
    add_options(parser, EngineArgs, skip=("model", "seed"))


def _bench(parser: argparse.ArgumentParser) -> None:
    kinds = ("latency", "throughput", "ops", "loop")
    parser.add_argument("kind", choices=kinds, help="what to measure")
    _model(parser)
    parser.add_argument("--input-len", type=_positive, default=128, help="prompt tokens (128)")
    parser.add_argument("--output-len", type=_positive, default=128, help="reply tokens (128)")
    parser.add_argument(
        "--num-prompts", type=_positive, default=32, help="concurrent requests of throughput (32)"
    )
    parser.add_argument("--num-iters", type=_positive, default=5, help="measured repetitions (5)")
    add_options(parser, EngineArgs, skip=("model",))


def _model(parser: argparse.ArgumentParser) -> None:
    item = EngineArgs.__dataclass_fields__["model"]
    text = f"{item.metadata['help']} (default: {item.default})"
    parser.add_argument("model", nargs="?", metavar="MODEL", default=item.default, help=text)


def _sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling")
    numbers: dict[str, tuple[Callable[[str], Any], str]] = {
        "max-tokens": (int, "most tokens of the reply (default: 256)"),
        "temperature": (float, "0 is greedy (default: the model's)"),
        "top-p": (float, "keep the most likely tokens up to this mass"),
        "top-k": (int, "keep this many of the most likely tokens"),
        "min-p": (float, "drop tokens below this share of the most likely one"),
        "seed": (int, "makes the reply reproducible"),
        "repetition-penalty": (float, "above 1 makes repetition less likely"),
    }
    for name, (kind, text) in numbers.items():
        group.add_argument(f"--{name}", type=kind, help=text)
    group.add_argument("--stop", action="append", help="a string that ends the reply (repeatable)")
    group.add_argument("--ignore-eos", action="store_true", help="go on after the end token")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: expected at least 1")
    return value


def add_options(
    parser: argparse.ArgumentParser, kind: type[Any], skip: tuple[str, ...] = ()
) -> None:
    """One flag per field, in the groups that the fields name."""
    groups: dict[str, Any] = {}
    hints = get_type_hints(kind)
    for item in fields(kind):
        if item.name in skip:
            continue
        name = item.metadata["group"]
        group = groups.setdefault(name, parser.add_argument_group(name))
        _add_option(group, item, hints[item.name])


def _add_option(group: Any, item: Field[Any], hint: Any) -> None:
    flag = "--" + item.name.replace("_", "-")
    text = item.metadata["help"].replace("%", "%%")
    common: dict[str, Any] = {"dest": item.name, "default": argparse.SUPPRESS}
    if hint is bool:
        action = argparse.BooleanOptionalAction
        group.add_argument(flag, action=action, help=f"{text} (default: {item.default})", **common)
    elif hint == tuple[str, ...]:
        group.add_argument(flag, action="append", metavar="VALUE", help=text, **common)
    else:
        kinds = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
        shown = "" if item.default in (None, MISSING) else f" (default: {item.default})"
        group.add_argument(
            flag, type=kinds[0], metavar=kinds[0].__name__.upper(), help=text + shown, **common
        )


def options_of(kind: type[Any], options: Arguments) -> Any:
    """The dataclass from parsed flags."""
    given = {}
    for item in fields(kind):
        if hasattr(options, item.name):
            value = getattr(options, item.name)
            given[item.name] = tuple(value) if isinstance(value, list) else value
    return kind(**given)


def sampling_of(options: Arguments, defaults: dict[str, Any]) -> dict[str, Any]:
    """Sampling parameters from flags over the model's defaults."""
    names = ("temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty", "stop")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    limit = options.max_tokens if options.max_tokens is not None else 256
    return {**defaults, **given, "max_tokens": limit, "ignore_eos": options.ignore_eos}
