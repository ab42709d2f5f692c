"""The command itself: help without heavy imports, exit codes, errors as one line."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from dartspec import __version__
from dartspec.cli.lazy import LazyGroup
from dartspec.cli.main import SUBCOMMANDS, main
from dartspec.services.common.errors import (
    Cancelled,
    DartspecError,
    DeadlineExceeded,
    Evicted,
    FailedPrecondition,
    InternalError,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)

HEAVY = ("torch", "transformers", "tokenizers", "ngram_index", "jinja2")


@pytest.fixture
def run_raising(monkeypatch):
    """Runs `dartspec doctor` with a body that raises."""

    def run(error: BaseException) -> int:
        @click.command()
        def broken() -> None:
            raise error

        monkeypatch.setattr(LazyGroup, "get_command", lambda self, ctx, name: broken)
        return main(["doctor"])

    return run


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidArgument("field", "wrong"), 2),
        (FailedPrecondition("does not fit"), 2),
        (NotFound("no such thing"), 2),
        (ResourceExhausted("full"), 1),
        (DeadlineExceeded("late"), 1),
        (Cancelled("gone"), 1),
        (Unavailable("away"), 1),
        (Evicted("dropped"), 1),
        (InternalError("ours"), 1),
    ],
)
def test_errors_are_one_line_with_their_exit_code(run_raising, capsys, error: DartspecError, code):
    assert run_raising(error) == code
    captured = capsys.readouterr()
    assert captured.err == f"error: {error.message}\n"
    assert captured.out == ""


def test_interruption_is_130(run_raising, capsys):
    assert run_raising(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err.strip() == ""


@pytest.mark.parametrize(
    ("module", "extra"), [("torch", "verifier"), ("ngram_index", "ngram"), ("tokenizers.models", "gateway")]
)
def test_a_missing_extra_says_what_to_install(run_raising, capsys, module, extra):
    assert run_raising(ModuleNotFoundError(f"No module named {module!r}", name=module)) == 2
    assert f"pip install 'dartspec[{extra}]'" in capsys.readouterr().err


def test_a_missing_module_of_ours_is_not_hidden(run_raising):
    with pytest.raises(ModuleNotFoundError):
        run_raising(ModuleNotFoundError("No module named 'dartspec.nothing'", name="dartspec.nothing"))


def test_help_lists_every_command_and_version_is_printed(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name, lazy in SUBCOMMANDS.items():
        assert name in out
        assert lazy.help in out
    assert main(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["nonsense"], ["up", "--nonsense"], ["generate", "a", "b"]])
def test_wrong_usage_is_exit_code_2(capsys, arguments):
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert "--help'" in err


def test_no_arguments_show_the_help(capsys):
    assert main([]) == 2
    assert "Commands:" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(SUBCOMMANDS))
def test_help_of_each_command_needs_no_heavy_import(name):
    code = (
        "import sys; from dartspec.cli.main import main; code = main([sys.argv[1], '--help']);"
        f"print('HEAVY', [m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Usage: dartspec {name}")
    assert done.stderr.splitlines()[-1] == "HEAVY []"


async def test_a_reader_that_goes_away_is_no_traceback():
    shell = f"set -o pipefail; {sys.executable} -m dartspec.cli.main --help | true"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
