"""The `dartspec` command: one group, whose subcommands are imported when they are called."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from dartspec import __version__
from dartspec.cli.exit_codes import FAILED, INTERRUPTED, WRONG_USE, exit_code
from dartspec.cli.lazy import Lazy, LazyGroup
from dartspec.services.common.errors import DartspecError

EXTRA_OF_MODULE: Mapping[str, str] = {
    "aiohttp": "gateway",
    "jinja2": "gateway",
    "matplotlib": "plot",
    "rich": "top",
    "tokenizers": "gateway",
    "ngram_index": "ngram",
    "prometheus_client": "ngram",
    "gguf": "verifier",
    "huggingface_hub": "verifier",
    "safetensors": "verifier",
    "sentencepiece": "verifier",
    "torch": "verifier",
    "transformers": "verifier",
}


SUBCOMMANDS: Mapping[str, Lazy] = {
    "up": Lazy("dartspec.cli.up:up", "Start a local stack: ngram, verifier and gateway."),
    "generate": Lazy("dartspec.cli.generate:generate", "Answer prompts; compare plain and DART decoding."),
    "demo": Lazy("dartspec.cli.demo:demo", "Three prompts in both modes on the built-in model."),
    "bench": Lazy("dartspec.cli.bench:bench", "Send load to a gateway and measure."),
    "top": Lazy("dartspec.cli.top:top", "Watch the replicas, modes and ledger of a gateway."),
    "replicas": Lazy("dartspec.cli.replicas:replicas", "List the verifiers of a gateway; drain one."),
    "health": Lazy("dartspec.cli.probe:health", "Ask a service whether it serves."),
    "doctor": Lazy("dartspec.cli.doctor:doctor", "Say whether this machine can run a stack."),
    "verifier": Lazy("dartspec.services.verifier.command:verifier", "Serve a target model and its draft head."),
    "ngram": Lazy("dartspec.services.ngram.command:ngram", "Serve, build and inspect n-gram indexes."),
    "gateway": Lazy("dartspec.gateway.command:gateway", "Serve Generate over verifiers and ngram services."),
    "draft": Lazy("dartspec.cli.draft:draft", "Write text with a target, train its draft head, evaluate it."),
}


@click.group("dartspec", cls=LazyGroup, table=SUBCOMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dartspec")
def dartspec() -> None:
    """Lossless speculative decoding as a set of small gRPC services."""


def missing_module(error: ModuleNotFoundError) -> str | None:
    """What to install, when the module belongs to one of our extras."""
    module = (error.name or "").partition(".")[0]
    extra = EXTRA_OF_MODULE.get(module)
    if extra is None:
        return None
    return f"this command needs the package {module}, which is not installed: pip install 'dartspec[{extra}]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code. Our own errors become one line on stderr."""
    try:
        result: Any = dartspec.main(args=arguments, prog_name="dartspec", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return WRONG_USE
    except click.UsageError as error:
        return _fail(_usage_message(error), WRONG_USE)
    except click.ClickException as error:
        return _fail(error.format_message(), FAILED)
    except DartspecError as error:
        return _fail(error.message, exit_code(error))
    except ModuleNotFoundError as error:
        message = missing_module(error)
        if message is None:
            raise
        return _fail(message, WRONG_USE)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output is gone. Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _usage_message(error: click.UsageError) -> str:
    where = f" (see '{error.ctx.command_path} --help')" if error.ctx is not None else ""
    return error.format_message().rstrip(".") + where


def _fail(message: str, code: int) -> int:
    click.echo(f"error: {message}", err=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
